"""Average results over seeds: ``tools/summarise.py RESULTS… --output STEM``; see ``--help``."""

from ffn.cli.summarise import main

if __name__ == "__main__":
    raise SystemExit(main())
