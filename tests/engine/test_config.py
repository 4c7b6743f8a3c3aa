"""Configs: merged in order; all problems at once; tasks of packages; plain values; changes."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from pydantic import Field

from ffn.engine.config import (
    ConfigError,
    changed_options,
    config_from_dict,
    load_config,
    option_help,
)
from ffn.engine.tasks import TASKS, PlainTask, TaskOptions, register_task
from ffn.registry import ExtensionError

ROOT = Path(__file__).parents[2]


def problems(*overrides: str, path: Path | None = None) -> list[str]:
    """The problems that the error about a config lists."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return [*caught.value.problems]


def test_defaults_file_and_overrides_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("train:\n  epochs: 7\n  batch_size: 64\noptim: {lr: 0.5}\ndata:\n")

    config = load_config(path, ["train.epochs=9", "task.frames=[3, 5]", "train.epochs=10"])

    assert config.train.epochs == 10  # the last override
    assert config.train.batch_size == 64  # the file
    assert config.optim.lr == 0.5
    assert config.optim.momentum == 0.9  # the default
    assert config.task.frames == [3, 5]  # lists are replaced, not joined


def test_every_shipped_config_loads() -> None:
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    assert files
    for file in files:
        assert load_config(file).model.name, file


def test_all_problems_are_reported_together() -> None:
    found = problems(
        "model.dropout=1.5",
        "task.frames=[4, eight]",
        "data.flip=on",
        "train.epoch=3",
        "train.epochs=0",
        "optim.lr=fast",
        "lr=1",
        "training.batch_size=8",
        "qqq.zzz=3",
    )
    for key, hint in {
        "model.dropout": "less than 1",
        "task.frames": "'eight'",
        "data.flip": "'random' or 'swap'",
        "train.epoch;": "did you mean train.epochs?",
        "train.epochs": "greater than or equal to 1",
        "optim.lr": "number",
        "lr;": "did you mean optim.lr?",
        "training.batch_size;": "did you mean train.batch_size?",
        "qqq.zzz;": "--help",
    }.items():
        assert [text for text in found if key in text and hint in text], key
    assert len(found) == 9


def test_wrong_values() -> None:
    for given in (
        "train.epochs=1.5",
        "train.epochs=null",
        "train.clip_grad_norm=on",
        "train.compile=maybe",
        "train.seed=-1",
        "optim.lr=nan",
        "task.frames=4,8",
        "task.frames=[]",
        "task.frames=[0]",
        "task.frames=[4, 4]",
        "task.frames=[5000]",
        "task.ranges=[[2, 5]]",
        "task.ranges=[[2, 5], [6, 11], [12, 5000]]",
        "data.test_frames=[]",
    ):
        (text,) = problems(given)
        assert given.partition("=")[0] in text, text
    for given in ("epochs", "task.frames=[4,8", "train=3"):
        assert len(problems(given)) == 1


def test_contradictions() -> None:
    for one, other in (
        ("train.sync_bn=true", "train.freeze=head_only"),
        ("train.compile=true", "train.sync_bn=true"),
        ("train.compile=true", "data.on_error=skip"),
        ("model.pretrained=true", "model.weights=x.pt"),
        ("data.sampling=dense", "data.test_frames=[100]"),
        ("data.sampling=dense", "task.ranges=[[2, 5], [6, 11], [12, 80]]"),
        ("data.resize=30", "data.crop=32"),
        ("data.flip=swap", "data.flip_pairs=[]"),
        ("data.area=[0.5, 1]", "data.crop_mode=multiscale"),
        ("task.interpolate=true", "task.private=all"),
        ("task.draws=[[2, 5]]", "task.ranges=[]"),
        ("task.draws=[[2, 7]]", "task.ranges=[[2, 5], [6, 11], [12, 20]]"),
    ):
        (text,) = problems(one, other)
        assert one.partition("=")[0] in text


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in (b"- a\n", b"train: [1\n", b"train: 3\n", b'a: "\xff"', b"a: 1\na: 2\n"):
        path.write_bytes(text)
        (message,) = problems(path=path)
        assert str(path) in message
    with pytest.raises(ConfigError, match="no config file"):
        load_config(tmp_path / "missing.yaml")


def test_texts_mean_what_the_type_of_an_option_says(tmp_path: Path) -> None:
    """YAML alone would read false, a number, a date, 90 and octal numbers."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "log: {project: 007, output: 2023-11-22}\ndata: {train: 1:30, val: on}\n"
        "optim: {lr: 1e-3, momentum: .5}\ntrain: {batch_size: 032, compile: Off}\n"
        "model: {weights: ~, name: 'null'}\n"
    )
    overrides = ["data.root=@work: #1", "task.frames=8", "data.classes=", "imports=[]"]
    config = load_config(path, [*overrides, "data.frame_pattern={:05d}.jpg"])

    assert (config.log.project, config.log.output) == ("007", "2023-11-22")
    assert (config.data.train, config.data.val) == ("1:30", "on")
    assert (config.optim.lr, config.optim.momentum) == (1e-3, 0.5)
    assert (config.train.batch_size, config.train.compile) == (32, False)
    assert (config.model.weights, config.model.name) == (None, "null")
    assert (config.data.root, config.task.frames) == ("@work: #1", [8])
    assert (config.imports, config.data.classes) == ([], None)
    assert config.data.frame_pattern == "{:05d}.jpg"


def test_a_short_file_cannot_stand_for_an_endless_value(tmp_path: Path) -> None:
    """Ten lists of nine aliases each stand for 9**10 numbers."""
    lists = ["&a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lists += [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    path = tmp_path / "config.yaml"
    path.write_text(f"data:\n  scales: [{', '.join(lists)}]\n")
    assert all(len(text) < 500 for text in problems(path=path))


# --- tasks and packages --------------------------------------------------------------------------


def test_unknown_task_and_option_of_another_task() -> None:
    (text,) = problems("task.name=plian")
    assert "did you mean plain?" in text
    (text,) = problems("task.name=plain", "task.frames=[4]", "task.small_views=label")
    assert "unknown option task.small_views" in text
    assert problems("task.name=plain", "task.frames=[4, 8]")
    assert problems("task.name=mixed_sampling", "task.frames=[4]")
    assert problems("task.name=proportional_sampling", "task.frames=[4]")


def test_options_of_a_task_that_the_command_line_replaces_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("task: {private: all, frames: [4, 8], ranges: [[2, 5], [6, 9]]}\n")
    plain = ("task.name=plain", "task.frames=[8]")
    assert load_config(path, plain) == load_config(None, plain)
    assert load_config(path, ["task.name=mixed_sampling"]).task.ranges == [[2, 5], [6, 9]]


class ToyOptions(TaskOptions):
    strength: float = Field(0.5, description="strength of the toy", ge=0)
    rounds: int = Field(3, description="rounds of the toy")
    weights: dict[str, float] = Field({"a": 1.0}, description="weight of each term")


@patch.dict(TASKS)
def test_registered_task_has_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    register_task("toy")(type("ToyTask", (PlainTask,), {"Options": ToyOptions}))
    given = ["task.name=toy", "task.frames=[4]"]
    config = load_config(None, [*given, "task.rounds=7", "task.weights={a: 1, b: 2}"])

    assert isinstance(config.task, ToyOptions)
    assert config.task.strength == 0.5
    values = config.model_dump()
    assert values["task"]["rounds"] == 7
    assert values["task"]["weights"] == {"a": 1.0, "b": 2.0}
    assert config_from_dict(values) == config
    assert "task.strength=0.5" in option_help()
    (text,) = problems(*given, "task.strength=-1")
    assert "task.strength" in text
    (text,) = problems(*given, "task.round=2")
    assert "did you mean task.rounds?" in text
    with pytest.raises(ExtensionError, match="cannot import 'no_such_package'"):
        load_config(None, ["imports=no_such_package"])


# --- plain values and changes --------------------------------------------------------------------


def test_round_trip_through_plain_values(tmp_path: Path) -> None:
    overrides = ["task.frames=[3]", "task.name=plain", "data.flip=random"]
    config = load_config(None, [*overrides, "train.clip_grad_norm=null"])
    values = config.model_dump()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))

    assert values["task"] == {"name": "plain", "frames": [3], "ranges": []}
    assert config_from_dict(values) == config
    assert load_config(tmp_path / "config.yaml") == config
    with pytest.raises(ConfigError, match=r"unknown option train\.new"):
        config_from_dict({"train": {"new": 1}})


def test_changed_options() -> None:
    """Nothing is imported: a run may resume after its package has another name."""
    before = load_config(None, ["train.grad_accum_steps=2"]).model_dump()
    before["imports"] = ["no_such_package"]

    now = load_config(None, ["optim.lr=0.5", "train.compile=true", "log.output=x", "data.root=y"])
    assert changed_options(before, now) == ["optim.lr 0.01 -> 0.5"]
    assert changed_options(before, load_config(None, ["train.epochs=60"])) == []
    assert changed_options(before, load_config(None, ["train.epochs=40"])) != []
    plain = load_config(None, ["task.name=plain", "task.frames=[4]"])
    changed = changed_options(before, plain)
    assert {"task.name flexible -> plain", "task.private norms -> None"} <= {*changed}
