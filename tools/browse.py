"""Draw the clips that the network gets: ``tools/browse.py CONFIG``; see ``--help``."""

from ffn.cli.browse import main

if __name__ == "__main__":
    raise SystemExit(main())
