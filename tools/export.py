"""Export a network: ``tools/export.py --weights W --frames 8 --output F.pt2``; see ``--help``."""

from ffn.cli.export import main

if __name__ == "__main__":
    raise SystemExit(main())
