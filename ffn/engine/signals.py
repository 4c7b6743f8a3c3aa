"""Signals that stop a run: it finishes the step, saves, and exits with `EXIT_STOPPED`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_STOPPED = 75  # sysexits.h: EX_TEMPFAIL, "the user is invited to retry"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# torchrun forwards a signal that its process group has already received: both are one request.
SAME_REQUEST = 1.0  # seconds


class StoppedError(Exception):
    """A signal stopped the run after a checkpoint; the same command resumes it."""

    exit_status = EXIT_STOPPED


class StopRequest:
    """Whether a signal has requested to stop the run; a context manager that handles signals.

    The first SIGTERM, SIGINT or SIGUSR1 sets `requested`, for the loop to stop after its step. A
    second one, more than `SAME_REQUEST` seconds later, exits at once with status 128 + signal. A
    process that is not verbose prints no message.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        self.verbose, self.requested = verbose, False
        self._since = 0.0
        self._error: StoppedError | None = None  # to raise at once

    def __enter__(self) -> StopRequest:
        self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self, error: StoppedError) -> Iterator[None]:
        """Raise an error at once on a signal inside or before; for code with nothing to save."""
        if self.requested:
            raise error
        self._error = error
        try:
            yield
        finally:
            self._error = None

    def _handle(self, number: int, _: object) -> None:
        # print may hold a lock when the signal is received; os.write has none.
        if self.requested:
            if time.monotonic() - self._since > SAME_REQUEST:
                show_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar hides it
                os.write(2, f"{show_cursor}\nexited without saving\n".encode())
                os._exit(128 + number)
            return
        self.requested, self._since = True, time.monotonic()
        if self.verbose:
            name = signal.Signals(number).name
            text = f"\n{name}: the run stops after this step and saves; repeat to exit at once\n"
            os.write(2, text.encode())
        if self._error is not None:
            raise self._error
