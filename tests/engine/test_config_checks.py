"""Values out of range and contradictions: all problems of a config are reported together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from config_toys import every_option, problems

from ffn.engine.config import load_config
from ffn.engine.config_help import option_help


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.frames=[]"], r"task\.frames is \[\]; it must list different counts"),
        (["task.frames=[0,4]"], r"\[0, 4\]; each number must be at least 1"),
        (["task.frames=[4,4]"], "must list different counts"),
        (["task.name=plain"], "plain trains exactly one"),
        (["task.name=mixed_sampling"], r"\[4, 8, 16\]; .* two frame counts, .*=\[4,16\]"),
        (
            ["task.name=mixed_sampling", "task.frames=[4,16]", "task.mix_probability=0"],
            r"task\.mix_probability is 0\.0; it must be above 0 and at most 1$",
        ),
        (
            ["task.name=mixed_sampling", "task.frames=[4,16]", "task.mix_probability=1.1"],
            r"task\.mix_probability is 1\.1",
        ),
        (
            ["task.name=proportional_sampling", "task.frames=[4]"],
            r"\[4\]; .* two or more frame counts",
        ),
        *(
            (
                ["task.name=proportional_sampling", f"task.largest_probability={value}"],
                rf"task\.largest_probability is {value}; .* above 0 and below 1$",
            )
            for value in (0.0, 1.0)
        ),
        (["data.test_frames=[]"], r"data\.test_frames is \[\]"),
        (["data.test_frames=[0]"], r"data\.test_frames is \[0\]"),
        (
            ["train.grad_accum_steps=3"],
            r"batch_size is 32; .* by 3 \(train\.grad_accum_steps 3 x .*Use 30 or 33",
        ),
        (["train.grad_accum_steps=0"], "train.grad_accum_steps is 0; it must be at least 1"),
        (["train.batch_size=0"], r"train\.batch_size is 0; it must be at least 1"),
        (["train.epochs=0"], r"train\.epochs is 0"),
        (["train.validate_epochs=0"], r"train\.validate_epochs is 0"),
        (["train.save_steps=-1"], r"train\.save_steps is -1"),
        (["data.workers=-1"], r"data\.workers is -1"),
        (["log.interval=0"], r"log\.interval is 0"),
        (["optim.lr=0"], r"optim\.lr is 0"),
        (["optim.layer_decay=2"], r"optim\.layer_decay is 2.*; it must be above 0 and at most 1"),
        (
            ["optim.base_batch_size=0"],
            r"optim\.base_batch_size is 0; it must be at least 1, or null",
        ),
        (
            ["data.test_frames=[4,5000]"],
            r"data\.test_frames has 5,000 frames per clip; at most 4,096 are accepted",
        ),
        (["optim.lr=inf"], r"optim\.lr is inf; it must be finite, above 0"),
        (["data.std=[1,nan,1]"], r"data\.std is \[1\.0, nan, 1\.0\]; each number must be finite"),
        (["optim.momentum=2"], r"optim\.momentum is 2.*from 0 to below 1"),
        (["optim.weight_decay=-1"], r"optim\.weight_decay is -1.*at least 0"),
        (["optim.milestones=[-1]"], r"optim\.milestones is \[-1.*at least 0"),
        (["train.clip_grad_norm=0"], r"clip_grad_norm is 0.*above 0, or null"),
        (["train.seed=-1"], r"train\.seed is -1; it must be from 0 to 4294967295"),
        (["model.dropout=1"], r"model\.dropout is 1"),
        (["task.distill_weight=-1"], r"task\.distill_weight is -1"),
        (["data.crop=300"], r"data\.resize is 256; it must be at least data\.crop, 300"),
        (
            ["train.repeated_aug=3"],
            r"batch_size is 32; .* by 3 .*x train\.repeated_aug 3\)",
        ),
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
        (["data.color_jitter=[0.4]"], "four strengths"),
        (["data.color_jitter=[1e308,0,0,0]"], r"each number must be from 0 to 100$"),
        (["data.cache_gib=1e305"], r"cache_gib is 1e\+305; it must be from 0 to 1048576$"),
        (["train.class_weight_list=[1e308,1]"], "number must be above 0 and at most 1000000$"),
        (["data.randaugment=m7-n4"], "expected (timm's form|a policy of timm)"),
        (["data.flip=swap"], r"needs data\.flip_pairs"),
        (["data.sampling=dense", "data.test_frames=[65]"], r"most 64 .*data\.test_frames has 65;"),
        (["data.sampling=dense", "task.frames=[8,96]"], r"most 64 frames, .*task\.frames has 96;"),
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
        "command line: 'epochs' is not key=value",
        f"{path}: line 1: option train.epochs is 'many'",
        f"{path}: line 1: option train.clip_norm is now train.clip_grad_norm",
        f"{path}: line 2: unknown option model.nane; did you mean model.name?",
        "task.distill_weight is -1",
        "data.random_erasing is 7",
        "data.workers is -2",
        "optim.lr is 0",
        "train.batch_size is 30; it must be divisible by 4",
        "data.test_protocol: ",
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


NUMBERS = {
    "train.clip_grad_norm": 20.0,
    "train.freeze_blocks": 1,
    "train.class_weight_list": [1.0],
    "optim.base_batch_size": 32,
    "task.ranges": [[2, 5]],
    "optim.milestones": [20.0],
}


def first(key: str) -> object:
    """The default of an option, or a number of its list."""
    value = NUMBERS.get(key, every_option()[key])
    while isinstance(value, list):
        value = value[0] if value else None
    return value


def given(key: str, number: str) -> str:
    """A value of an option with one other number."""
    value = NUMBERS.get(key, every_option()[key])
    if not isinstance(value, list):
        return number
    if key == "task.ranges":
        return f"[[{number},5],[6,11],[12,20]]"
    return f"[{','.join([number, *map(str, value[1:])])}]"


NOT_FINITE = ("nan", "inf", "-inf", ".NaN", "1e999")


@pytest.mark.parametrize("key", [key for key in every_option() if type(first(key)) in (int, float)])
def test_every_number_has_a_range(key: str) -> None:
    """The help prints it; numbers outside it, and those that are not finite, are refused."""
    (line,) = (x for x in option_help().splitlines() if x.strip().startswith(f"{key}="))
    shown = re.search(r"\((?:each )?((?:at least|above|from) [^()]*)\)", line)
    assert shown, line
    bounds = [float(number) for number in re.findall(r"[0-9]+", shown[1])]
    kind = type(first(key))
    for bound, outside in zip(bounds, (-1, 1), strict=False):
        is_open = re.search(rf"(above|below) {bound:g}\b", shown[1])
        for value in (bound + outside, *([bound] if is_open else [])):
            (text,) = problems(f"{key}={given(key, repr(kind(value)))}")
            assert re.match(rf"{key} is .*; (it|each number) must be {re.escape(shown[1])}", text)
    for value in NOT_FINITE if kind is float else ("-" + "9" * 30, "9" * 30):
        (text,) = problems(f"{key}={given(key, value)}")
        assert re.match(rf"{key} is .*; (it|each number) must be ", text)


def test_paths_below_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell does not replace ~ after `key=`."""
    monkeypatch.setenv("HOME", "/home/someone")
    config = load_config(None, ["data.root=~/clips", "log.output=~/runs/a", "data.train=~a.csv"])
    assert config.data.root == "/home/someone/clips"
    assert config.log.output == "/home/someone/runs/a"
    assert config.data.train == "~a.csv"
