"""Models by name, weights by name: create, load, save, download, read foreign checkpoints."""

from ffn.zoo.create import create_model, list_models
from ffn.zoo.download import download, home
from ffn.zoo.load import (
    build_model,
    load,
    load_start_weights,
    load_with_record,
    read_weights,
    save_weights,
)
from ffn.zoo.match import Match, match_state
from ffn.zoo.records import WeightRecord, WeightsError, find_record, list_weights

__all__ = [
    "Match",
    "WeightRecord",
    "WeightsError",
    "build_model",
    "create_model",
    "download",
    "find_record",
    "home",
    "list_models",
    "list_weights",
    "load",
    "load_start_weights",
    "load_with_record",
    "match_state",
    "read_weights",
    "save_weights",
]
