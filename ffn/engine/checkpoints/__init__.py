"""Checkpoints of a run: file format, run folder, lock, save and restore."""
