"""Cross-validate: ``tools/crossvalidate.py CONFIG --annotations F --output D``; see ``--help``."""

from ffn.cli.crossvalidate import main

if __name__ == "__main__":
    raise SystemExit(main())
