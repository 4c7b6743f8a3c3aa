"""Test networks: ``tools/test.py CONFIG --weights W --frames 2 4 …``; see ``--help``."""

from ffn.cli.test import main

if __name__ == "__main__":
    raise SystemExit(main())
