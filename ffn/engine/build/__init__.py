"""Build a run from a config. No other module of the engine receives a config."""

from ffn.engine.build.data import (
    build_preprocessing,
    build_test_loader,
    build_train_loader,
    clips_per_forward,
    read_config_splits,
    store_location,
)
from ffn.engine.build.model import (
    build_model,
    build_optimiser,
    build_schedule,
    build_task,
)
from ffn.engine.build.run import build_run, build_train_step

__all__ = [
    "build_model",
    "build_optimiser",
    "build_preprocessing",
    "build_run",
    "build_schedule",
    "build_task",
    "build_test_loader",
    "build_train_loader",
    "build_train_step",
    "clips_per_forward",
    "read_config_splits",
    "store_location",
]
