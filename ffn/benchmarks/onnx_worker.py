"""Process of its own that prints the memory of an ONNX file in ONNX Runtime, in bytes.

Arguments: the file, the number of threads, and the shape of the input. The memory is the growth of
the largest resident memory of the process, from before the file is opened until a forward pass has
ended. It has no torch, whose libraries and allocator would hide the growth.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(path: str, threads: str, *shape: str) -> None:
    """Open the file, run one clip of random values, print the growth."""
    clip = np.random.default_rng(0).standard_normal([int(n) for n in shape], dtype=np.float32)
    before = largest_resident_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {session.get_inputs()[0].name: clip})
    print(largest_resident_memory() - before)


def largest_resident_memory() -> int:
    """Of this process so far, in bytes; ``ru_maxrss`` of Linux includes that of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


if __name__ == "__main__":
    main(*sys.argv[1:])
