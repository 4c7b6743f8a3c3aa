"""Options: merged in order, and every mistake named before anything is built."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml
from engine_toys import ROOT

from ffn.cli.train import main
from ffn.engine import options as module
from ffn.engine.config import (
    ConfigError,
    config_from_dict,
    config_to_dict,
    load_config,
    option_help,
)
from ffn.engine.options import Config, Flip, Task


def every_option(cls: type = Config, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for option in fields(cls):
        kind = get_type_hints(cls)[option.name]
        if is_dataclass(kind):
            found |= every_option(kind, f"{prefix}{option.name}.")
        else:
            default = option.default_factory() if option.default is MISSING else option.default
            found[f"{prefix}{option.name}"] = default
    return found


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

    assert (config.model.name, config.task.name.value) == ("tsm_r50", "flexible")
    assert (config.task.frames, config.task.distill_weight) == ([4, 8, 16], 1.0)
    assert (config.train.epochs, config.train.batch_size, config.train.clip_grad_norm) == (
        50,
        32,
        20,
    )
    assert (config.optim.lr, config.optim.milestones, config.optim.gamma) == (0.01, [20, 40], 0.1)
    assert (config.optim.momentum, config.optim.weight_decay) == (0.9, 5e-4)


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
    ],
)
def test_unknown_option(override: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option {override.split('=')[0]}") as caught:
        load_config(None, [override])
    assert hint in str(caught.value)


def test_unknown_option_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train:\n  epoch: 7\n")

    with pytest.raises(ConfigError, match=r"mine\.yaml: unknown option train\.epoch; did you mean"):
        load_config(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs=many", r"train\.epochs: Value 'many'.* Integer"),
        ("train.epochs=1.5", r"train\.epochs: Value '1\.5'.* Integer"),
        ("train.epochs=null", r"train\.epochs: Incompatible value 'None'"),
        ("optim.lr=fast", r"optim\.lr: Value 'fast'.* Float"),
        ("train.freeze_bn=maybe", r"train\.freeze_bn: .*bool"),
        ("task.frames=[4, eight]", r"task\.frames.*'eight'.*Integer"),
        ("task.frames=4", r"task\.frames: "),
        (
            "task.name=flex",
            r"task\.name: Invalid value 'flex', expected one of \[flexible, plain\]",
        ),
        ("train.precision=fp8", r"expected one of \[fp32, bf16, fp16\]"),
        ("data.flip=on", r"data\.flip: .* expected one of \[none, random, swap\]"),
        ("epochs", "'epochs' is no key=value, as train.epochs=10"),
    ],
)
def test_wrong_type(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.frames=[]"], r"task\.frames is \[\]; give positive counts"),
        (["task.frames=[0,4]"], "give positive counts"),
        (["task.frames=[4,4]"], "none twice"),
        (["task.name=plain"], "plain trains exactly one"),
        (["data.test_frames=[]"], r"data\.test_frames is \[\]"),
        (["data.test_frames=[0]"], r"data\.test_frames is \[0\]"),
        (
            ["train.grad_accum_steps=3"],
            "batch_size 32 is not divisible by train.grad_accum_steps 3",
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
        (["model.dropout=1"], r"model\.dropout is 1"),
        (["task.distill_weight=-1"], r"task\.distill_weight is -1"),
        (["data.crop=300"], r"data\.resize 256 is smaller than data\.crop 300"),
        (["train.repeated_aug=3"], r"batch_size 32 is not divisible by .*x train\.repeated_aug 3"),
        (["train.repeated_aug=0"], r"train\.repeated_aug is 0"),
        (["train.mixup=-1"], r"train\.mixup is -1"),
        (["train.cutmix=-1"], r"train\.cutmix is -1"),
        (["train.label_smoothing=1"], r"train\.label_smoothing is 1"),
        (["data.test_protocol=3x5"], r"3x5 is unknown; expected CLIPSxCROPS"),
        (["data.test_protocol=3"], r"'3' is unknown; expected CLIPSxCROPS"),
        (["data.area=[0.5,1]"], r"data\.area needs data\.crop_mode=resized; it is multiscale"),
        (["data.crop_mode=resized", "data.scales=[1]"], r"data\.scales needs"),
        (["data.crop_mode=resized", "data.area=[0.5,2]"], r"area is \[0\.5, 2"),
        (["data.crop_mode=scale_jitter", "data.jitter_scales=[128,160]"], "crop 224 <= smallest"),
        (["data.random_erasing=2"], "random_erasing is 2"),
        (["data.colour_jitter=[0.4]"], "four strengths"),
        (["data.randaugment=m7-n4"], "expected a policy of timm"),
        (["data.flip=swap"], r"needs data\.flip_pairs"),
        (["data.flip_pairs=[[a,b]]"], r"needs data\.flip=swap"),
        (["model.pretrained=true", "model.weights=x.pt"], "exclude each other"),
    ],
    ids=str,
)
def test_contradiction(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b\n", "holds no options"), ("train: [1\n", "is no yaml"), ("train: 3\n", "unknown")],
)
def test_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match="no config file"):
        load_config(tmp_path / "missing.yaml")


def test_round_trip_through_plain_values(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = load_config(
        None,
        ["task.frames=[3]", "task.name=plain", "data.flip=random", "train.clip_grad_norm=null"],
    )
    values = config_to_dict(config)
    OmegaConf.save(values, tmp_path / "config.yaml")

    assert values["task"]["name"] == "plain"  # plain values, no enums
    assert config_from_dict(values) == config
    assert load_config(tmp_path / "config.yaml") == config
    assert (config.task.name, config.data.flip) == (Task.plain, Flip.random)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_configs_that_ship(path: Path) -> None:
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


def test_help_lists_every_option_with_its_default() -> None:
    lines = option_help().splitlines()
    defaults = every_option()

    assert len(lines) == len(defaults) >= 40
    for line, (key, default) in zip(lines, defaults.items(), strict=True):
        shown = default.value if isinstance(default, Enum) else default
        words = {None: "null", True: "true", False: "false"}
        shown = words[shown] if shown is None or isinstance(shown, bool) else shown
        assert line.startswith(f"  {key}={shown} ")
        assert len(line.split(f"{key}={shown}")[1].strip()) > 10  # and what it means
        if isinstance(default, Enum):
            assert all(choice.value in line for choice in type(default))


def test_what_help_shows_can_be_given_back() -> None:
    for line in option_help().splitlines():
        key, _, rest = line.strip().partition("=")
        default = every_option()[key]
        if isinstance(default, list):
            continue  # holds spaces
        assert load_config(None, [f"{key}={rest.split()[0]}"]) == load_config(None)


def test_help_of_the_command(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])

    assert option_help() in capsys.readouterr().out


def test_every_enum_value_is_its_name() -> None:
    enums = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Enum)]

    assert len(enums) > 5
    assert all(choice.value == choice.name for kind in enums for choice in kind)
