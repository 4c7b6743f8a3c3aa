"""``ffn test``, as a script for torchrun."""

import sys

from ffn.__main__ import run_process

if __name__ == "__main__":
    run_process(["test", *sys.argv[1:]])
