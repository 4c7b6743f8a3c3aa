"""Write a trained network for release: ``tools/publish.py CHECKPOINT NAME``; see ``--help``."""

from ffn.cli.publish import main

if __name__ == "__main__":
    raise SystemExit(main())
