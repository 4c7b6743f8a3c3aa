"""Learning-rate range test: ``tools/find_lr.py CONFIG key=value…``; see ``--help``."""

from ffn.cli.find_lr import main

if __name__ == "__main__":
    raise SystemExit(main())
