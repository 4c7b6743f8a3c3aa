"""Compare cross-validated networks: ``tools/compare.py FOLDER… --output STEM``; see ``--help``."""

from ffn.cli.compare import main

if __name__ == "__main__":
    raise SystemExit(main())
