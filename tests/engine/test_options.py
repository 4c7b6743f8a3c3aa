"""The list of options: shipped configs, docs and ``--help`` agree with it."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest
import yaml
from config_toys import every_option
from engine_toys import ROOT

from ffn.engine import options as module
from ffn.engine.config import (
    config_to_dict,
    load_config,
)
from ffn.engine.config_help import option_help

OF_OTHER_TASKS = {"task.mix_probability": 0.5, "task.largest_probability": 0.5}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_configs(path: Path) -> None:
    assert load_config(path)


@pytest.mark.parametrize(("place", "name"), [(0, "slowfast_r50"), (1, "uniformer_s")])
def test_recipes_of_the_docs_are_those_of_the_configs(
    place: int, name: str, tmp_path: Path
) -> None:
    text = (ROOT / "docs/augmentation.md").read_text()
    recipe = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)[place]
    (tmp_path / "recipe.yaml").write_text(recipe)

    shipped = config_to_dict(load_config(ROOT / f"configs/sthv1/{name}.yaml"))
    documented = config_to_dict(load_config(tmp_path / "recipe.yaml"))
    for section, options in yaml.safe_load(recipe).items():
        assert {key: documented[section][key] for key in options} == {
            key: shipped[section][key] for key in options
        }


@pytest.mark.parametrize(("page", "least"), [("augmentation", 15), ("fine_tuning", 7)])
def test_options_of_the_docs_exist(page: str, least: int) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    named = set(re.findall(r"[` ]((?:data|train|model|optim|log|task)\.(?!md)\w+)[=`]", text))
    assert len(named) > least
    assert named <= set(every_option())


@pytest.mark.usefixtures("toy_task")
def test_help_lists_every_option_once_with_its_default() -> None:
    lines = option_help().splitlines()
    defaults = every_option() | OF_OTHER_TASKS | {"task.strength": 0.5, "task.rounds": 3}

    keys = [line.split("=")[0].strip() for line in lines]
    assert sorted(keys) == sorted(defaults)
    assert len(keys) >= 60
    for line, key in zip(lines, keys, strict=True):
        default = defaults[key]
        shown = default.value if isinstance(default, Enum) else default
        words = {None: "null", True: "true", False: "false"}
        shown = words[shown] if shown is None or isinstance(shown, bool) else shown
        assert line.startswith(f"  {key}={shown} ")
        assert len(line.split(f"{key}={shown}")[1].strip()) > 10  # its meaning
        if isinstance(default, Enum):
            assert all(choice.value in line for choice in type(default))
    named = dict(zip(keys, lines, strict=True))
    tasks = "flexible, mixed_sampling, plain, proportional_sampling, toy"
    assert named["task.name"].endswith(f"({tasks})")
    assert named["task.small_views"].endswith("[task.name=flexible]")
    assert named["task.strength"].endswith("strength of the toy, at least 0 [task.name=toy]")
    assert "[" not in named["task.frames"].partition("]")[2]  # of every task


def test_defaults_of_the_help_can_be_given_as_overrides() -> None:
    for line in option_help().splitlines():
        key, _, rest = line.strip().partition("=")
        if isinstance(every_option().get(key), list) or key in OF_OTHER_TASKS:
            continue  # its text has spaces; it needs task.name
        assert load_config(None, [f"{key}={rest.split()[0]}"]) == load_config(None)


def test_every_enum_value_is_its_name() -> None:
    enums = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Enum)]

    assert len(enums) > 5
    assert all(choice.value == choice.name for kind in enums for choice in kind)
