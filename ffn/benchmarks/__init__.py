"""What ``tools/benchmark.py`` compares: training, inference and reading, timed side by side."""
