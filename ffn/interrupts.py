"""Ctrl-C ends a program with one line, also while it imports, and at its exit."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130  # 128 + SIGINT


def handle_interrupts() -> None:
    """Take Ctrl-C as `KeyboardInterrupt`, but end the program at once during an import.

    Imports, which take seconds, may hide the exception. The handler of a program that ignores
    Ctrl-C stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def end_at_interrupts() -> None:
    """Take Ctrl-C as the end of the program, for its exit handlers."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, _end)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _end()
        frame = frame.f_back
    raise KeyboardInterrupt


def _end(*_: object) -> None:
    program = os.path.basename(sys.argv[0]).removesuffix(".py")
    words = ["ffn", program] if program not in ("ffn", "__main__") else ["ffn", *sys.argv[1:2]]
    os.write(2, f"\n{' '.join(words)}: interrupted\n".encode())
    os._exit(EXIT_INTERRUPTED)
