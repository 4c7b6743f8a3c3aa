"""Inference: labels and probabilities of videos."""

from ffn.serve.prediction import Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.windows import Segment, merge_windows

__all__ = ["Prediction", "Predictor", "Segment", "merge_windows"]
