"""Training: config, what it builds, tasks, the loop, checkpoints, the log."""
