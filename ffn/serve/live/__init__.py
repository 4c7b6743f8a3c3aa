"""Predict cameras, streams and files while they run."""
