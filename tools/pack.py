"""Pack the videos of a config into a clip store: ``tools/pack.py CONFIG``; see ``--help``."""

from ffn.cli.pack import main

if __name__ == "__main__":
    raise SystemExit(main())
