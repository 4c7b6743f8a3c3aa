"""Choices of a number of frames that end, block or fail the worker process that reads a video."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from ffn.serve.clips import Part


@dataclass(frozen=True)
class Ends:
    """Ends the process, as a decoder that crashes."""

    def __call__(self, part: Part) -> tuple[int, str]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return 1, ""


@dataclass(frozen=True)
class Blocks:
    """Blocks the process."""

    def __call__(self, part: Part) -> tuple[int, str]:
        time.sleep(600)
        return 1, ""
