"""Curves of training runs: ``tools/plot_log.py RUN…``; see ``--help``."""

from ffn.cli.plot_log import main

if __name__ == "__main__":
    raise SystemExit(main())
