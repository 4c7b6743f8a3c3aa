"""A task with options, and the problems of a config as a list."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from ffn.engine.config import (
    ConfigError,
    load_config,
)
from ffn.engine.options import Config
from ffn.engine.tasks import PlainTask, TaskOptions, option


def every_option(cls: type = Config, prefix: str = "") -> dict[str, Any]:
    """The default of every option, with those of the default task."""
    found: dict[str, Any] = {}
    for one in fields(cls):
        default = one.default_factory() if one.default is MISSING else one.default
        if is_dataclass(default):
            found |= every_option(type(default), f"{prefix}{one.name}.")
        else:
            found[f"{prefix}{one.name}"] = default
    return found


def problems(*overrides: str, path: Path | None = None) -> list[str]:
    """The problems that the error about a config lists."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    lines = str(caught.value).splitlines()
    assert len(lines) == min(3, len(caught.value.problems))
    assert all(line.startswith("  ") for line in lines[1:])
    return [*caught.value.problems]


@dataclass
class ToyOptions(TaskOptions):
    strength: float = option(0.5, "strength of the toy, at least 0")
    rounds: int = option(3, "rounds of the toy")


class ToyTask(PlainTask):
    Options = ToyOptions

    @classmethod
    def problems(cls, options: ToyOptions) -> list[str]:
        if options.strength >= 0:
            return []
        return [f"task.strength is {options.strength}; at least 0"]


@dataclass
class WeightedOptions(TaskOptions):
    weights: dict[str, float] = option({"a": 1.0}, "weight of each term")


class WeightedTask(PlainTask):
    Options = WeightedOptions
