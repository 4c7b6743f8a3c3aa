"""Fit and test cascades: ``tools/cascade.py fit|report …``; see ``--help``."""

from ffn.cli.cascade import main

if __name__ == "__main__":
    raise SystemExit(main())
