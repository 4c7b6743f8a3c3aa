"""Videos of numbered frames; one thread and one terminal width per process.

Tests are small, and several threads on busy cores are slower.
"""

from __future__ import annotations

import os
import signal

import torch
from compiler_toys import fresh_compiler
from video_fixtures import numbers, write_folder, write_video

__all__ = ["fresh_compiler", "numbers", "write_folder", "write_video"]

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by a job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt their processes
os.environ["COLUMNS"] = "200"  # help texts wrap alike in every process
