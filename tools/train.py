"""Train from a config: ``tools/train.py CONFIG key=value…``; see ``--help``."""

from ffn.cli.train import main

if __name__ == "__main__":
    raise SystemExit(main())
