"""Label a stream while it runs: ``tools/live.py SOURCE --weights W``; see ``--help``."""

from ffn.cli.live import main

if __name__ == "__main__":
    raise SystemExit(main())
