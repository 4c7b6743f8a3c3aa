"""Models and weights by name: create, load, save, download, convert foreign checkpoints."""

from ffn.zoo.create import create_model, list_models
from ffn.zoo.download import download, home, sha256_of
from ffn.zoo.fetch import early_exit_beside, early_exit_path, fetch_weights
from ffn.zoo.load import load, load_start_weights, load_with_record, model_from_record
from ffn.zoo.read import read_weights
from ffn.zoo.records import WeightRecord, WeightsError, find_record, list_weights
from ffn.zoo.repositories import push_to_hub
from ffn.zoo.save import save_weights, state_sha256
from ffn.zoo.state_match import Match, match_state

__all__ = [
    "Match",
    "WeightRecord",
    "WeightsError",
    "create_model",
    "download",
    "early_exit_beside",
    "early_exit_path",
    "fetch_weights",
    "find_record",
    "home",
    "list_models",
    "list_weights",
    "load",
    "load_start_weights",
    "load_with_record",
    "match_state",
    "model_from_record",
    "push_to_hub",
    "read_weights",
    "save_weights",
    "sha256_of",
    "state_sha256",
]
