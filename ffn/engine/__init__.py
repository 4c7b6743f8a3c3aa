"""Training: config, build, tasks, train step, loop, checkpoints, log."""
