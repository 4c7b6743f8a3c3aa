"""A task with options, and the problems of a config as a list."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from ffn.engine.config import ConfigError, load_config
from ffn.engine.tasks import PlainTask, TaskOptions


def problems(*overrides: str, path: Path | None = None) -> list[str]:
    """The problems that the error about a config lists."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [*caught.value.problems]


class ToyOptions(TaskOptions):
    strength: float = Field(0.5, description="strength of the toy", ge=0)
    rounds: int = Field(3, description="rounds of the toy")
    weights: dict[str, float] = Field({"a": 1.0}, description="weight of each term")


class ToyTask(PlainTask):
    Options = ToyOptions
