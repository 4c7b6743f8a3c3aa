"""Convert foreign weights: ``tools/convert_checkpoint.py IN OUT --model M``; see ``--help``."""

from ffn.cli.convert_checkpoint import main

if __name__ == "__main__":
    raise SystemExit(main())
