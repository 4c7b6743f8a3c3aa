"""Decode the videos of a list and report unreadable ones; see ``--help``."""

from ffn.cli.check_data import main

if __name__ == "__main__":
    raise SystemExit(main())
