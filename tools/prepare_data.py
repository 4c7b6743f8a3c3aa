"""Write the index of a data set: ``tools/prepare_data.py DATASET --root ROOT``; see ``--help``."""

from ffn.cli.prepare_data import main

if __name__ == "__main__":
    raise SystemExit(main())
