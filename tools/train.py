"""``ffn train``, as a script for torchrun."""

import sys

from ffn.__main__ import run_process

if __name__ == "__main__":
    run_process(["train", *sys.argv[1:]])
