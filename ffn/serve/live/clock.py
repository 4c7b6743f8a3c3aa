"""The clock of live prediction; tests replace it with a simulated one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Clock:
    """The clock of this machine. All waiting of live prediction goes through it."""

    def now(self) -> float:
        """Seconds since an arbitrary moment; never steps back."""
        return time.monotonic()

    def wait(
        self,
        condition: threading.Condition,
        ready: Callable[[], bool],
        seconds: float | None = None,
    ) -> bool:
        """Wait until something is ready or the time has passed.

        Args:
            condition: held by the caller; released while it waits, and notified on changes.
            ready: what is waited for.
            seconds: at most so long; None: without a limit.

        Returns:
            Whether it is ready.
        """
        return condition.wait_for(ready, seconds)
