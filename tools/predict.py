"""``ffn predict``, as a script."""

import sys

from ffn.__main__ import run_process

if __name__ == "__main__":
    run_process(["predict", *sys.argv[1:]])
