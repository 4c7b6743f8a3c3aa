"""A simulated clock for the two threads of live prediction: hours pass in seconds.

One thread runs at a time. The time goes on when both wait and neither is ready, to the earliest
moment at which one stops waiting; so a test gives the same result each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ffn.serve.live.sources import Pace

READER = "ffn live"  # begin of the name of the thread that reads


@dataclass
class Waiter:
    ready: Callable[[], bool]
    until: float | None
    wake: threading.Event


class SimulatedClock(Pace):
    """The pace of a live predictor in the thread that iterates over it."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._own = threading.Lock()
        self._blocked: dict[threading.Thread, Waiter] = {}

    def now(self) -> float:
        return self._time

    def spend(self, seconds: float) -> None:
        """Let the time pass for this thread, as work does."""
        self._block(lambda: False, seconds)

    def wait_for(self, ready: Callable[[], object], seconds: float | None = None) -> None:
        if not ready():
            self.release()
            try:
                self._block(ready, seconds)
            finally:
                self.acquire()

    def _block(self, ready: Callable[[], bool], seconds: float | None) -> None:
        thread, wake = threading.current_thread(), threading.Event()
        with self._own:
            until = None if seconds is None else self._time + seconds
            self._blocked[thread] = Waiter(ready, until, wake)
        while True:
            with self._own:
                self._wake_next()
            # The other thread may end, or not have begun, without a word.
            if wake.wait(0.002):
                return
            with self._own:
                if thread.name.startswith(READER) and not wake.is_set() and ready():
                    self._blocked.pop(thread)  # it is to end, and the other thread waits for that
                    return

    def _wake_next(self) -> None:
        """If no thread runs, wake the one that is ready, or whose time comes first."""
        readers = {t for t in threading.enumerate() if t.name.startswith(READER)}
        if readers - self._blocked.keys() or not self._blocked.keys() - readers:
            return
        ready = [thread for thread, waiter in self._blocked.items() if waiter.ready()]
        ends = [(w.until, n) for n, w in enumerate(self._blocked.values()) if w.until is not None]
        if ready:
            chosen = ready[0]
        elif ends:
            until, place = min(ends)
            chosen = list(self._blocked)[place]
            self._time = max(self._time, until)
        else:
            raise AssertionError("all threads wait for ever")
        self._blocked.pop(chosen).wake.set()
