"""Configs: merged in order; unknown options, tasks and packages; plain values; older versions."""

from __future__ import annotations

import copy
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from config_toys import ToyOptions, WeightedOptions, WeightedTask, every_option, problems

from ffn.engine.config import (
    RENAMED,
    RESUMABLE,
    ConfigError,
    changed_options,
    config_from_dict,
    config_to_dict,
    different_options,
    import_packages,
    load_config,
)
from ffn.engine.config_help import option_help
from ffn.engine.options import Flip, Wandb
from ffn.engine.tasks import TASKS, PlainTask, TaskOptions


def test_defaults_file_and_overrides_in_this_order(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("train:\n  epochs: 7\n  batch_size: 64\noptim: {lr: 0.5}\n")

    config = load_config(path, ["train.epochs=9", "task.frames=[3, 5]", "train.epochs=10"])

    assert config.train.epochs == 10  # the last override
    assert config.train.batch_size == 64  # the file
    assert config.optim.lr == 0.5
    assert config.optim.momentum == 0.9  # the default
    assert config.task.frames == [3, 5]  # lists are replaced, not joined


def test_defaults_are_the_papers_recipe() -> None:
    config = load_config(None)

    assert (config.model.name, config.task.name) == ("tsm_r50", "flexible")
    assert (config.task.frames, config.task.distill_weight) == ([4, 8, 16], 1.0)
    train, optim = config.train, config.optim
    assert (train.epochs, train.batch_size, train.clip_grad_norm) == (50, 32, 20)
    assert (optim.lr, optim.milestones, optim.gamma) == (0.01, [20, 40], 0.1)
    assert (optim.momentum, optim.weight_decay) == (0.9, 5e-4)


# --- unknown options and wrong types -------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.epoch=3", "did you mean train.epochs?"),
        ("model.nane=tsm_r18", "did you mean model.name?"),
        ("lr=1", "did you mean optim.lr?"),
        ("batch_size=8", "did you mean train.batch_size?"),
        ("optim.learning_rate=1", "did you mean optim.lr?"),
        ("num_workers=3", "did you mean data.workers?"),
        ("training.batch_size=8", "did you mean train.batch_size?"),
        ("train=3", "unknown option train;"),
        ("train.=3", "did you mean"),
        ("__class__={}", "ffn train --help lists all"),
        ("qqq.zzz=3", "ffn train --help lists all"),
        (
            "task.weight=3",
            "those of task flexible: task.name, task.frames, task.ranges, task.private",
        ),
    ],
)
def test_unknown_option(override: str, hint: str) -> None:
    (text,) = problems(override)
    assert text.startswith(f"command line: unknown option {override.split('=')[0]}")
    assert hint in text


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_option_of_version_0_1_is_refused_with_its_new_name(old: str, new: str) -> None:
    assert problems(f"{old}=1") == [f"command line: option {old} is now {new}"]
    assert new in every_option()


def test_problem_in_a_file_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  epoch: 7\n  accumulate: 2\n")

    assert problems(path=path) == [
        f"{path}: line 2: unknown option train.epoch; did you mean train.epochs?",
        f"{path}: line 3: option train.accumulate is now train.grad_accum_steps",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.epochs=many",
            r"train\.epochs is 'many'; expected an integer, e\.g\. train\.epochs=50",
        ),
        ("train.epochs=1.5", r"train\.epochs is '1\.5'; expected an integer"),
        ("train.epochs=null", r"train\.epochs is null; give a value, e\.g\. train\.epochs=50"),
        ("data.flip=null", r"data\.flip is null; give a value, e\.g\. data\.flip=none"),
        ("optim.lr=fast", r"optim\.lr is 'fast'; expected a number, e\.g\. optim\.lr=0\.01"),
        ("train.freeze_bn=maybe", r"train\.freeze_bn is 'maybe'; expected true or false"),
        (
            "task.frames=[4, eight]",
            r"task\.frames is \['4', 'eight'\]; expected a list of integers, .*=\[4,8,16\]",
        ),
        ("task.frames=4,8", r"task\.frames is '4,8'; expected a list of integers"),
        ("task.frames=[[4]]", r"task\.frames is \[\['4'\]\]; expected a list of integers"),
        ("task.ranges=[2,5]", r"task\.ranges is .*; expected a list of lists of integers"),
        ("train.epochs.x=4", r"train\.epochs is \{'x': '4'\}; expected an integer"),
        ("task.frames=@work", r"task\.frames is '@work'; expected a list of integers"),
        ("data.timeout=[[[600]]]", r"data\.timeout is .*; expected a number"),
        ("train.clip_grad_norm=on", r"clip_grad_norm is 'on'; expected a number or null"),
        ("optim.milestones=[20,40", r"line 1: expected ',' or '\]'.*; check brackets"),
        ("task.private=some", r"expected one of \[norms, none, all\]"),
        ("train.precision=fp8", r"expected one of \[fp32, bf16, fp16\]"),
        ("data.flip=on", r"data\.flip is 'on'; expected one of \[none, random, swap\]"),
        ("data.root=${nowhere}", r"data\.root is '\$\{nowhere\}'; variables are not replaced"),
        ("epochs", r"'epochs' is not key=value \(e\.g\. train\.epochs=10\)"),
    ],
)
def test_wrong_type(override: str, message: str) -> None:
    (text,) = problems(override)
    assert re.search(message, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "holds no options"),
        ("train: [1\n", "is not valid YAML"),
        ("train: 3\n", "unknown option train;"),
    ],
)
def test_file_that_is_not_a_config(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match="no config file"):
        load_config(tmp_path / "missing.yaml")


# --- tasks and packages --------------------------------------------------------------------------


def test_unknown_task_is_reported_with_the_closest_name() -> None:
    (text,) = problems("task.name=plian")
    assert text == (
        "task.name: no task 'plian'; did you mean plain? A custom task needs imports=[PACKAGE]"
    )
    (text,) = problems("task.name=zzz")
    assert "registered are plain, mixed_sampling, proportional_sampling, flexible." in text
    assert len(problems("task.name=zzz", "train.epochs=0")) == 2


def test_option_of_another_task_is_unknown() -> None:
    (text,) = problems("task.name=plain", "task.frames=[4]", "task.small_views=label")
    assert text == (
        "command line: unknown option task.small_views; choose from those of task plain: "
        "task.name, task.frames, task.ranges"
    )


def test_option_of_a_task_that_the_command_line_replaces(tmp_path: Path) -> None:
    """It is left out; other names are refused, with the options of the chosen task."""
    path = tmp_path / "mine.yaml"
    path.write_text("task: {private: all, frames: [4, 8], ranges: [[2, 5], [6, 9]]}\n")
    plain = ("task.name=plain", "task.frames=[8]")
    assert load_config(path, plain) == load_config(None, plain)
    ranges = "task.ranges=[[6, 9]]"
    assert load_config(path, [*plain, ranges]) == load_config(None, [*plain, ranges])
    assert load_config(path, ["task.name=mixed_sampling"]).task.ranges == [[2, 5], [6, 9]]

    path.write_text("task: {name: flexible, private: all, privat: all}\n")
    (text,) = problems(*plain, path=path)
    assert text.endswith(
        "line 1: unknown option task.privat; choose from those of task plain: task.name, "
        "task.frames, task.ranges"
    )


@pytest.mark.parametrize("key", ["sections", "model.name", "data.scales"])
def test_empty_mapping_in_place_of_a_value_is_refused(key: str) -> None:
    (text,) = problems(f"{key}={{}}")
    assert key in text


def test_section_without_options_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text in ("model: {}\n", "train:\n  # epochs: 3\ndata:\nimports:\n"):
        path.write_text(text)
        assert load_config(path) == load_config(None)
    path.write_text("train:\nsections:\n")
    with pytest.raises(ConfigError, match="line 2: unknown option sections"):
        load_config(path)


def test_task_is_checked_with_a_malformed_override_too() -> None:
    found = problems("epochs", "task.name=plain")
    assert len(found) == 2
    assert "trains exactly one frame count" in found[1]


@pytest.mark.usefixtures("toy_task")
def test_registered_task_has_its_options() -> None:
    config = load_config(None, ["task.name=toy", "task.frames=[4]", "task.rounds=7"])

    assert (config.task.strength, config.task.rounds) == (0.5, 7)
    assert isinstance(config.task, ToyOptions)
    values = config_to_dict(config)
    assert values["task"] == {
        "name": "toy", "frames": [4], "ranges": [], "strength": 0.5, "rounds": 7
    }  # fmt: skip
    assert config_from_dict(values) == config
    assert problems("task.name=toy", "task.strength=-1") == ["task.strength is -1.0; at least 0"]
    (text,) = problems("task.name=toy", "task.rounds=many")
    assert "task.rounds is 'many'; expected an integer" in text
    (text,) = problems("task.name=toy", "task.distill_weight=2")
    known = "task.name, task.frames, task.ranges, task.strength, task.rounds"
    assert text.endswith(
        f"unknown option task.distill_weight; choose from those of task toy: {known}"
    )
    (text,) = problems("task.name=toy", "task.round=2")
    assert f"did you mean task.rounds? choose from those of task toy: {known}" in text


PACKAGE = """
from ffn.engine.tasks import PlainTask, TASKS, register_task
register_task("packaged")(type("PackagedTask", (PlainTask,), {}))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder that registers a task."""
    name = f"toy_package_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PACKAGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    TASKS._entries.pop("packaged", None)


def test_imports_register_tasks(package: str, tmp_path: Path) -> None:
    assert len(problems("task.name=packaged", "task.frames=[4]")) == 1

    config = load_config(None, [f"imports=[{package}]", "task.name=packaged", "task.frames=[4]"])
    assert config.imports == [package]

    path = tmp_path / "config.yaml"
    path.write_text(f"imports: {package}\ntask: {{name: packaged, frames: [4]}}\n")
    assert load_config(path) == config
    assert config_from_dict(config_to_dict(config)) == config


def test_help_lists_imported_tasks(package: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"imports: [{package}]\n")
    assert "packaged" not in option_help()

    import_packages(path, ["train.epochs=3"])

    assert "packaged" in option_help()


@pytest.mark.parametrize("where", ["file", "command line"])
def test_package_that_cannot_be_imported(tmp_path: Path, where: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("imports: [no_such_package]\n")
    load = {
        "file": lambda: load_config(path),
        "command line": lambda: import_packages("imports=[no_such_package]", []),
    }[where]
    with pytest.raises(ConfigError, match=r"cannot import 'no_such_package' .*install the package"):
        load()


def test_config_of_a_checkpoint_imports_nothing() -> None:
    """A run may resume after its package has another name."""
    before = config_to_dict(load_config(None)) | {"imports": ["no_such_package"]}

    assert config_from_dict(before).imports == ["no_such_package"]
    assert changed_options(before, load_config(None)) == []


def test_option_with_a_mapping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TASKS._entries, "weighted", WeightedTask)
    given = ["task.name=weighted", "task.frames=[4]"]
    path = tmp_path / "config.yaml"
    path.write_text("task: {weights: {b: 2}}\n")

    config = load_config(path, [*given, "task.weights.c=3"])

    assert config.task.weights == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert config_from_dict(config_to_dict(config)) == config
    changed = changed_options(config_to_dict(config), load_config(path, given))
    assert changed == [f"task.weights {config.task.weights} -> {{'a': 1.0, 'b': 2.0}}"]
    (text,) = problems(*given, "task.weights.a=heavy")
    assert "task.weights is {'a': 'heavy'}; expected a mapping of names to numbers" in text
    assert WeightedOptions().weights == {"a": 1.0}


def test_option_of_a_type_that_a_config_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Unsupported(TaskOptions):
        choices: set[int] = field(default_factory=set)

    task = type("UnsupportedTask", (PlainTask,), {"Options": Unsupported})
    monkeypatch.setitem(TASKS._entries, "unsupported", task)

    (text,) = problems("task.name=unsupported", "task.frames=[4]")
    assert text.startswith("task.name: option choices of task unsupported has a type")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("task.frames=[4,8", "command line: 'task.frames=[4,8' is not an option: line 1: expected"),
        (
            "model.name=${oops",
            "command line: option model.name is '${oops'; variables are not replaced",
        ),
        ("train.epochs=???", "command line: option train.epochs is '???'; expected an integer"),
        ("imports=[[5]]", "imports is [['5']]; give names, as imports=[my_package]"),
    ],
)
def test_invalid_override(given: str, message: str) -> None:
    (text,) = problems(given)
    assert text.startswith(message)


def test_texts_mean_what_the_type_of_an_option_says(tmp_path: Path) -> None:
    """YAML alone would read false, a number, a date, 90 and octal numbers."""
    path = tmp_path / "config.yaml"
    path.write_text(
        "log: {wandb: off, project: 007, output: 2023-11-22}\ndata: {train: 1:30, val: on}\n"
        "optim: {lr: 1e-3, momentum: .5}\ntrain: {batch_size: 0_32, compile: Off, seed: 010}\n"
        "model: {weights: ~, name: 'null'}\n"
    )
    config = load_config(
        path, ["data.root=@work: #1", "task.frames=8", "imports=", "data.classes="]
    )

    assert (config.log.wandb, config.log.project) == (Wandb.disabled, "007")
    assert (config.log.output, config.data.train, config.data.val) == ("2023-11-22", "1:30", "on")
    assert (config.optim.lr, config.optim.momentum) == (1e-3, 0.5)
    assert (config.train.batch_size, config.train.compile, config.train.seed) == (32, False, 10)
    assert (config.model.weights, config.model.name) == (None, "null")
    assert (config.data.root, config.task.frames) == ("@work: #1", [8])
    assert (config.imports, config.data.classes) == ([], None)


def test_option_given_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: {name: x}\ntrain:\n  epochs: 3\n  epochs: 4\n")
    (text,) = problems(path=path)
    assert text.startswith(f"{path} is not valid YAML: line 3: epochs is given twice")


@pytest.mark.parametrize("source", ["command line", "file"])
def test_aliases_are_refused_before_a_short_text_becomes_an_endless_value(
    tmp_path: Path, source: str
) -> None:
    """Ten lists of nine aliases each stand for 9**10 numbers."""
    lists = ["&a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lists += [f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    value, path = f"[{', '.join(lists)}]", tmp_path / "config.yaml"
    path.write_text(f"data:\n  scales: {value}\n")

    started = time.monotonic()
    (text,) = problems(path=path) if source == "file" else problems(f"data.scales={value}")

    line = 2 if source == "file" else 1
    assert f"line {line} has an alias (*name); write the value" in text
    assert time.monotonic() - started < 10


def test_value_out_of_range_names_the_file_that_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("optim: {lr: .nan, gamma: 2}\n")
    assert problems("train.epochs=0", path=path) == [
        "train.epochs is 0; it must be at least 1",
        f"{path}: line 1: optim.lr is nan; it must be finite, above 0",
    ]


@pytest.mark.parametrize("content", [b'model: {name: "\xff"}', b'model: {name: "${oops"}'])
def test_invalid_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    (text,) = problems(path=path)
    assert text.startswith(str(path))


# --- plain values, older versions, changes -------------------------------------------------------


def test_round_trip_through_plain_values(tmp_path: Path) -> None:
    overrides = ["task.frames=[3]", "task.name=plain", "data.flip=random"]
    config = load_config(None, [*overrides, "train.clip_grad_norm=null"])
    values = config_to_dict(config)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))

    assert values["task"] == {"name": "plain", "frames": [3], "ranges": []}
    assert values["data"]["flip"] == "random"  # plain values, no enums
    assert config_from_dict(values) == config
    assert load_config(tmp_path / "config.yaml") == config
    assert (config.task.name, config.data.flip) == ("plain", Flip.random)


# The sections of a config.yaml that version 0.1 wrote, with the options that it renamed.
VERSION_0_1 = {
    "model": {"name": "tsm_tiny", "dropout": 0.3},
    "task": {
        "name": "plain",
        "frames": [4],
        "private": "norms",
        "alteration": True,
        "small_views": "distill",
        "distill_weight": 1.0,
    },
    "data": {"reader": "pyav", "erasing": 0.25},
    "train": {
        "repeats": 2,
        "accumulate": 4,
        "recompute": True,
        "clip_norm": None,
        "freeze_norms": False,
        "sync_norms": True,
        "precise_norms": 3,
    },
    "optim": {"name": "adamw", "base_batch": 16},
    "log": {"output": "runs/old"},
}


def test_config_of_version_0_1_is_restored() -> None:
    found = config_to_dict(config_from_dict(VERSION_0_1))

    assert found["task"] == {"name": "plain", "frames": [4], "ranges": []}
    assert found["imports"] == []
    expected = {
        "data": {"decoder": "pyav", "random_erasing": 0.25},
        "train": {
            "repeated_aug": 2,
            "grad_accum_steps": 4,
            "activation_checkpointing": True,
            "clip_grad_norm": None,
            "freeze_bn": False,
            "sync_bn": True,
            "precise_bn": 3,
        },
        "optim": {"name": "adamw", "base_batch_size": 16},
    }
    for section, values in expected.items():
        assert {key: found[section][key] for key in values} == values

    flexible = copy.deepcopy(VERSION_0_1)
    flexible["task"] |= {"name": "flexible", "frames": [4, 8], "private": "all"}
    later = {"ranges": [], "draws": [], "interpolate": False}
    assert config_to_dict(config_from_dict(flexible))["task"] == flexible["task"] | later


def test_config_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown option train\.new"):
        config_from_dict({"train": {"new": 1}})


def test_changed_options() -> None:
    before = config_to_dict(load_config(None, ["train.grad_accum_steps=2"]))

    now = load_config(None, ["optim.lr=0.5", "train.compile=true", "log.output=x", "data.root=y"])
    assert changed_options(before, now) == ["optim.lr 0.01 -> 0.5"]
    plain = load_config(None, ["task.name=plain", "task.frames=[4]"])
    assert changed_options(before, plain) == [
        "task.alteration True -> None",
        "task.distill_weight 1.0 -> None",
        "task.draws [] -> None",
        "task.frames [4, 8, 16] -> [4]",
        "task.interpolate False -> None",
        "task.name flexible -> plain",
        "task.private norms -> None",
        "task.small_views distill -> None",
    ]
    assert changed_options(VERSION_0_1, config_from_dict(VERSION_0_1)) == []


def test_options_that_change_a_result() -> None:
    before = config_to_dict(load_config(None, []))
    now = ["log.interval=7", "data.root=y", "data.workers=0", "train.save_steps=5"]
    assert different_options(before, load_config(None, now)) == []
    now = ["train.epochs=60", "train.grad_accum_steps=2", "data.decoder=pyav"]
    assert different_options(before, load_config(None, now)) == [
        "data.decoder auto -> pyav",
        "train.epochs 50 -> 60",
        "train.grad_accum_steps 1 -> 2",
    ]


def test_resumable_options_exist() -> None:
    known = {*every_option(), "log", "imports"}
    assert set(RESUMABLE) <= known


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("{:05d}.jpg", "{:05d}.jpg"),
        ("{:d}", "{:d}"),
        ("img_{:05d}.png", "img_{:05d}.png"),
        ("'{:05d}.jpg'", "{:05d}.jpg"),
        ("null", None),
    ],
)
def test_frame_patterns_need_no_quotes(text: str, pattern: str | None) -> None:
    """YAML reads a brace as the start of a mapping."""
    assert load_config(None, [f"data.frame_pattern={text}"]).data.frame_pattern == pattern


@pytest.mark.parametrize("text", ["data.frame_pattern='x", "data.crop={", "model.nothing={:x"])
def test_other_broken_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an option"):
        load_config(None, [text])
