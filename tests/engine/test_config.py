"""Configs: merged in order, checked before use, all problems reported at once."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine_toys import ROOT

from ffn.engine import options as module
from ffn.engine.config import (
    RENAMED,
    RESUMABLE,
    ConfigError,
    changed_options,
    config_from_dict,
    config_to_dict,
    import_packages,
    load_config,
    option_help,
)
from ffn.engine.options import Config, Flip
from ffn.engine.tasks import TASKS, PlainTask, TaskOptions, option, register_task


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
    first, *others = str(caught.value).splitlines()
    if not others:
        return [first]
    assert first == f"{len(others)} problems:"
    assert all(line.startswith("  ") for line in others)
    return [line.strip() for line in others]


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


@pytest.fixture
def toy_task() -> Iterator[None]:
    register_task("toy")(ToyTask)
    yield
    del TASKS._entries["toy"]


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


# --- problems -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.epoch=3", "did you mean train.epochs?"),
        ("model.nane=tsm_r18", "did you mean model.name?"),
        ("lr=1", "did you mean optim.lr?"),
        ("batch_size=8", "did you mean train.batch_size?"),
        ("training.batch_size=8", "did you mean train.batch_size?"),
        ("train=3", "unknown option train;"),
        ("qqq.zzz=3", "tools/train.py --help lists all"),
        ("task.weight=3", "task flexible has task.name, task.frames, task.private"),
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


def test_problem_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  epoch: 7\n  accumulate: 2\n")

    assert problems(path=path) == [
        f"{path}: unknown option train.epoch; did you mean train.epochs?",
        f"{path}: option train.accumulate is now train.grad_accum_steps",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=many", r"train\.epochs: Value 'many'.* Integer"),
        ("train.epochs=1.5", r"train\.epochs: Value '1\.5'.* Integer"),
        ("train.epochs=null", r"train\.epochs is null; give a value, as train\.epochs=50"),
        ("optim.lr=fast", r"optim\.lr: Value 'fast'.* Float"),
        ("train.freeze_bn=maybe", r"train\.freeze_bn: .*bool"),
        ("task.frames=[4, eight]", r"task\.frames.*'eight'.*Integer"),
        ("task.frames=4", r"task\.frames: "),
        ("task.private=some", r"expected one of \[norms, none, all\]"),
        ("train.precision=fp8", r"expected one of \[fp32, bf16, fp16\]"),
        ("data.flip=on", r"data\.flip: .* expected one of \[none, random, swap\]"),
        ("data.root=${nowhere}", r"data\.root: .*nowhere"),
        ("epochs", "'epochs' is not key=value, as train.epochs=10"),
    ],
)
def test_wrong_type(override: str, message: str) -> None:
    (text,) = problems(override)
    assert re.search(message, text)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.frames=[]"], r"task\.frames is \[\]; give different counts of at least 1"),
        (["task.frames=[0,4]"], "different counts of at least 1"),
        (["task.frames=[4,4]"], "different counts of at least 1"),
        (["task.name=plain"], "plain trains exactly one"),
        (["data.test_frames=[]"], r"data\.test_frames is \[\]"),
        (["data.test_frames=[0]"], r"data\.test_frames is \[0\]"),
        (
            ["train.grad_accum_steps=3"],
            "batch_size 32 is not divisible by train.grad_accum_steps 3.*multiple of 3",
        ),
        (["train.grad_accum_steps=0"], "train.grad_accum_steps is 0; at least 1"),
        (["train.batch_size=0"], r"train\.batch_size is 0; at least 1"),
        (["train.epochs=0"], r"train\.epochs is 0"),
        (["train.validate_epochs=0"], r"train\.validate_epochs is 0"),
        (["train.save_steps=-1"], r"train\.save_steps is -1"),
        (["data.workers=-1"], r"data\.workers is -1"),
        (["data.order=pages"], r"data\.order=pages needs data\.format=store"),
        (["data.page_mib=0"], r"data\.page_mib is 0"),
        (["data.page_window=0"], r"data\.page_window is 0"),
        (["data.store_cache_gib=0"], r"data\.store_cache_gib is 0"),
        (["log.interval=0"], r"log\.interval is 0"),
        (["optim.lr=0"], r"optim\.lr is 0"),
        (["optim.layer_decay=2"], r"optim\.layer_decay is 2.*; above 0, at most 1"),
        (["optim.base_batch_size=0"], r"optim\.base_batch_size is 0; at least 1, or null"),
        (["model.dropout=1"], r"model\.dropout is 1"),
        (["task.distill_weight=-1"], r"task\.distill_weight is -1"),
        (["data.crop=300"], r"data\.resize 256 is smaller than data\.crop 300"),
        (["train.repeated_aug=3"], r"batch_size 32 is not divisible by .*x train\.repeated_aug 3"),
        (["train.repeated_aug=0"], r"train\.repeated_aug is 0"),
        (["train.mixup=-1"], r"train\.mixup is -1"),
        (["train.cutmix=-1"], r"train\.cutmix is -1"),
        (["train.label_smoothing=1"], r"train\.label_smoothing is 1"),
        (["train.freeze_bn=true", "train.precise_bn=2"], "precise_bn and train.freeze_bn exclude"),
        (["train.freeze_bn=true", "train.sync_bn=true"], "sync_bn and train.freeze_bn exclude"),
        (["train.compile=true", "train.sync_bn=true"], "train.compile and train.sync_bn exclude"),
        (["train.compile=true", "data.on_error=skip"], "compile and data.on_error=skip exclude"),
        (["data.test_protocol=3x5"], r"3x5 is unknown; expected CLIPSxCROPS"),
        (["data.test_protocol=3"], r"'3' is unknown; expected CLIPSxCROPS"),
        (["data.area=[0.5,1]"], r"data\.area needs data\.crop_mode=resized; .* is multiscale"),
        (["data.crop_mode=resized", "data.scales=[1]"], r"data\.scales needs"),
        (["data.crop_mode=resized", "data.area=[0.5,2]"], r"area is \[0\.5, 2"),
        (
            ["data.crop_mode=scale_jitter", "data.jitter_scales=[128,160]"],
            "crop 224 <= (least|smallest)",
        ),
        (["data.random_erasing=2"], "random_erasing is 2"),
        (["data.colour_jitter=[0.4]"], "four strengths"),
        (["data.randaugment=m7-n4"], "expected (timm's form|a policy of timm)"),
        (["data.flip=swap"], r"needs data\.flip_pairs"),
        (["data.flip_pairs=[[a,b]]"], r"needs data\.flip=swap"),
        (["model.pretrained=true", "model.weights=x.pt"], "exclude each other"),
    ],
    ids=str,
)
def test_value_out_of_range_or_contradiction(overrides: list[str], message: str) -> None:
    (text,) = problems(*overrides)
    assert re.search(message, text)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    """Of the file and of the command line; of names, types, ranges and combinations."""
    path = tmp_path / "mine.yaml"
    path.write_text("train: {epochs: many, clip_norm: 3}\nmodel: {nane: x}\n")

    found = problems(
        "epochs",
        "optim.lr=0",
        "task.distill_weight=-1",
        "train.batch_size=30",
        "train.grad_accum_steps=4",
        "data.workers=-2",
        "data.random_erasing=7",
        "data.test_protocol=9",
        path=path,
    )

    expected = [
        "'epochs' is not key=value",
        f"{path}: option train.epochs: Value 'many'",
        f"{path}: option train.clip_norm is now train.clip_grad_norm",
        f"{path}: unknown option model.nane; did you mean model.name?",
        "data.workers is -2",
        "optim.lr is 0",
        "task.distill_weight is -1",
        "train.batch_size 30 is not divisible by train.grad_accum_steps 4",
        "data.test_protocol: ",
        "data: random_erasing is 7",
    ]
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found


def test_wrong_option_is_reported_once() -> None:
    """Not also as a contradiction of another option, or with its default."""
    assert len(problems("train.grad_accum_steps=0")) == 1
    assert len(problems("train.batch_size=many", "train.grad_accum_steps=3")) == 1
    assert len(problems("data.crop=wide", "data.resize=10")) == 1
    assert len(problems("task.name=plian", "task.frames=[4,8]")) == 1
    assert len(problems("data.crop_mode=round", "data.area=[0.5,1]")) == 1


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


# --- tasks and packages -------------------------------------------------------------------------


def test_unknown_task_is_reported_with_the_closest_name() -> None:
    (text,) = problems("task.name=plian")
    assert text == (
        "task.name: no task 'plian'; did you mean plain? A task of your own needs imports=[PACKAGE]"
    )
    (text,) = problems("task.name=zzz")
    assert "registered are plain, flexible." in text
    assert len(problems("task.name=zzz", "train.epochs=0")) == 2


def test_option_of_another_task_is_unknown() -> None:
    (text,) = problems("task.name=plain", "task.frames=[4]", "task.small_views=label")
    assert text == (
        "command line: unknown option task.small_views; task plain has task.name, task.frames"
    )


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
    assert values["task"] == {"name": "toy", "frames": [4], "strength": 0.5, "rounds": 7}
    assert config_from_dict(values) == config
    assert problems("task.name=toy", "task.strength=-1") == ["task.strength is -1.0; at least 0"]
    (text,) = problems("task.name=toy", "task.rounds=many")
    assert "task.rounds: Value 'many'" in text
    (text,) = problems("task.name=toy", "task.distill_weight=2")
    assert text.endswith("task toy has task.name, task.frames, task.strength, task.rounds")


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


def test_help_knows_imported_tasks(package: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"imports: [{package}]\n")
    assert "packaged" not in option_help()

    import_packages(path, ["train.epochs=3"])

    assert "packaged" in option_help()


@pytest.mark.parametrize("where", ["file", "command line", "dict"])
def test_package_that_cannot_be_imported(tmp_path: Path, where: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("imports: [no_such_package]\n")
    load = {
        "file": lambda: load_config(path),
        "command line": lambda: import_packages("imports=[no_such_package]", []),
        "dict": lambda: config_from_dict({"imports": ["no_such_package"]}),
    }[where]
    with pytest.raises(ConfigError, match=r"cannot import 'no_such_package' .*install the package"):
        load()


# --- plain values, older versions, changes ------------------------------------------------------


def test_round_trip_through_plain_values(tmp_path: Path) -> None:
    overrides = ["task.frames=[3]", "task.name=plain", "data.flip=random"]
    config = load_config(None, [*overrides, "train.clip_grad_norm=null"])
    values = config_to_dict(config)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))

    assert values["task"] == {"name": "plain", "frames": [3]}
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

    assert found["task"] == {"name": "plain", "frames": [4]}
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
    assert config_to_dict(config_from_dict(flexible))["task"] == flexible["task"]


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
        "task.frames [4, 8, 16] -> [4]",
        "task.name flexible -> plain",
        "task.private norms -> None",
        "task.small_views distill -> None",
    ]
    assert changed_options(VERSION_0_1, config_from_dict(VERSION_0_1)) == []


def test_resumable_options_exist() -> None:
    known = {*every_option(), "log", "imports"}
    assert set(RESUMABLE) <= known


# --- configs, docs and help ---------------------------------------------------------------------


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


def test_options_of_the_docs_exist() -> None:
    text = (ROOT / "docs/augmentation.md").read_text()
    named = set(re.findall(r"`((?:data|train)\.\w+)", text))
    assert len(named) > 15
    assert named <= set(every_option())


@pytest.mark.usefixtures("toy_task")
def test_help_lists_every_option_once_with_its_default() -> None:
    lines = option_help().splitlines()
    defaults = every_option() | {"task.strength": 0.5, "task.rounds": 3}

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
    assert named["task.name"].endswith("(plain|flexible|toy)")
    assert named["task.small_views"].endswith("[task.name=flexible]")
    assert named["task.strength"].endswith("strength of the toy, at least 0 [task.name=toy]")
    assert "[" not in named["task.frames"].partition("]")[2]  # of every task


def test_defaults_of_the_help_can_be_given_as_overrides() -> None:
    for line in option_help().splitlines():
        key, _, rest = line.strip().partition("=")
        default = every_option()[key]
        if isinstance(default, list):
            continue  # its text has spaces
        assert load_config(None, [f"{key}={rest.split()[0]}"]) == load_config(None)


def test_every_enum_value_is_its_name() -> None:
    enums = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Enum)]

    assert len(enums) > 5
    assert all(choice.value == choice.name for kind in enums for choice in kind)
