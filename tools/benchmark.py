"""Throughput and memory as ratios from one run; see ``tools/benchmark.py --help``."""

from ffn.cli.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())
