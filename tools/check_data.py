"""Decode the videos of a list and report what cannot be trusted; see ``--help``."""

from ffn.cli.check_data import main

if __name__ == "__main__":
    raise SystemExit(main())
