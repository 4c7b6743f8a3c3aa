"""Signals that ask a run to end: it finishes the step, saves, and exits with `EXIT_STOPPED`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SAVED = "stopped and saved"
EXIT_STOPPED = 75  # sysexits.h: EX_TEMPFAIL, "the user is invited to retry"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# torchrun passes on the signal that its process group has already got: both are one request.
ONE_REQUEST = 1.0  # seconds


class StoppedError(Exception):
    """A signal ended the run after a checkpoint; the same command continues it."""


class StopRequest:
    """Whether a signal has asked the run to end; a context manager that listens.

    The first of SIGTERM, SIGINT and SIGUSR1 is noted, for the loop to end after its step. Another
    one, more than `ONE_REQUEST` seconds later, ends the process at once with status 128 + signal.

    Args:
        speaks: whether this process says that it was asked.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.speaks = speaks
        self.asked = False
        self._since = 0.0
        self._raises = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        try:
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        except ValueError:  # Python gives signals to the main thread alone
            self._before = {}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raised_at_once(self) -> Iterator[None]:
        """Raise `StoppedError` inside where all is saved and a signal need not wait for a step.

        Raises:
            StoppedError: a signal came, inside or before.
        """
        if self.asked:
            raise StoppedError(SAVED)
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked:
            if now - self._since > ONE_REQUEST:
                show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # which a progress bar hides
                os.write(2, f"{show_cursor}\nended at once\n".encode())
                os._exit(128 + number)
            return
        self.asked, self._since = True, now
        if self.speaks:
            name = signal.Signals(number).name
            text = f"\n{name}: the run saves and ends; once more ends it at once\n"
            os.write(2, text.encode())  # what prints may hold a lock when the signal comes
        if self._raises:
            raise StoppedError(SAVED)
