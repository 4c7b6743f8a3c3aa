"""Trained networks at work: from a video file to labels."""

from ffn.serve.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
