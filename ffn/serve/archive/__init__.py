"""Predict the videos of a list into a table, in several processes."""
