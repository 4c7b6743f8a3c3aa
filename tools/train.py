"""``ffn train``, as a script for torchrun."""

import sys

from ffn.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["train", *sys.argv[1:]]))
