"""Foreign weights as ours: ``tools/convert_checkpoint.py IN OUT --from SOURCE``; see ``--help``."""

from ffn.cli.convert_checkpoint import main

if __name__ == "__main__":
    raise SystemExit(main())
