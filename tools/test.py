"""``ffn test``, as a script for torchrun."""

import sys

from ffn.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["test", *sys.argv[1:]]))
