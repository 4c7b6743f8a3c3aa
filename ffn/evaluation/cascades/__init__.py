"""Cascades of frame counts: calibrated, fitted and compared on stored predictions."""
