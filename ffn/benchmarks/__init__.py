"""Benchmarks: training steps, inference and video reading, each as ratios between variants."""
