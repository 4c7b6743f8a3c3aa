"""Inference: labels and probabilities of video files."""

from ffn.serve.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
