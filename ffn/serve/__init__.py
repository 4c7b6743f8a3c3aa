"""Inference: labels and probabilities of videos and of streams while they run, and heat maps."""

from ffn.serve.client import Client, ServiceError
from ffn.serve.heat_maps import HeatMap
from ffn.serve.live.predictor import LiveAnswer, LivePredictor
from ffn.serve.live.sources import SourceEvent, open_source
from ffn.serve.prediction import Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.windows import Segment, merge_windows

__all__ = [
    "Client",
    "HeatMap",
    "LiveAnswer",
    "LivePredictor",
    "Prediction",
    "Predictor",
    "Segment",
    "ServiceError",
    "SourceEvent",
    "merge_windows",
    "open_source",
]
