"""The commands of docs/paper_tables.md load, belong to their rows, and test what was trained."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest

from ffn.cli import test as tool
from ffn.engine.config import load_config
from ffn.engine.options import Config
from ffn.zoo import list_weights

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/paper_tables.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
]
# Rows with a command: their label and config.
TRAINED = [(row[0], row[-1].strip("`")) for row in ROWS if "tools/train.py" in row[-1]]
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines()]
# What the label of a row says about its config.
CLAIMS = {
    "FFN": {"name": "flexible", "private": "norms", "alteration": True, "small_views": "distill"},
    "ST at": {"name": "plain"},
    "mixed sampling, ρ .50": {"name": "mixed_sampling", "frames": [4, 16], "mix_probability": 0.5},
    "mixed sampling, ρ .75": {"name": "mixed_sampling", "frames": [4, 16], "mix_probability": 0.75},
    "proportional sampling, p(16) .50": {
        "name": "proportional_sampling", "frames": [4, 16], "largest_probability": 0.5
    },
    "proportional sampling, p(16) .75": {
        "name": "proportional_sampling", "frames": [4, 16], "largest_probability": 0.75
    },
    "fine-tuned from 16 to 4": {"name": "plain", "frames": [4]},
    "without private norms": {"name": "flexible", "frames": [4, 8, 16], "private": "none"},
    "without alteration": {"name": "flexible", "frames": [4, 8, 16], "alteration": False},
    "without distillation": {"name": "flexible", "frames": [4, 8, 16], "small_views": "label"},
    "without sharing": {"name": "flexible", "frames": [4, 8, 16], "private": "all"},
}  # fmt: skip
NETWORKS = {
    "TEA": "tea_r50",
    "SlowFast": "slowfast_r50",
    "UniFormer-S": "uniformer_s",
    "TSM-R18": "tsm_r18",
    "TSM-R101": "tsm_r101",
}
DATA_SETS = {"Sth V2": "data/sthv2", "Kinetics-400": "data/k400", "HMDB51": "data/hmdb51"}


@functools.cache
def config_of(command: str) -> Config:
    words = shlex.split(command)
    _, path, *options = words[words.index("tools/train.py") :]
    return load_config(ROOT / path, options)


def training_commands() -> list[str]:
    return [command for _, command in TRAINED] + [s for s in LINES if "tools/train.py" in s]


def test_the_page_is_found() -> None:
    assert len(TRAINED) > 40
    assert len(LINES) > 15
    labels = {label for label, _ in TRAINED}
    assert {claim for claim in CLAIMS if claim not in ("FFN", "ST at")} <= labels


@pytest.mark.parametrize(("label", "command"), TRAINED, ids=[label for label, _ in TRAINED])
def test_config_of_a_row_is_what_its_label_says(label: str, command: str) -> None:
    config = config_of(command)

    (claims,) = (claims for part, claims in CLAIMS.items() if part in label)
    found = {name: getattr(config.task, name) for name in claims}
    assert {k: getattr(v, "value", v) for k, v in found.items()} == claims
    counts = re.search(r"(?:ST at|FFN) (\d+(?:/\d+)*)", label)
    if counts is not None:
        assert config.task.frames == [int(count) for count in counts[1].split("/")]
    network, _, data = label.partition(", ")
    assert config.model.name == NETWORKS.get(network, "tsm_r50")
    assert config.data.root == DATA_SETS.get(data.partition(",")[0], "data/sthv1")
    assert config.task.ranges == []


@pytest.mark.parametrize("command", [s for s in LINES if "tools/train.py" in s])
def test_training_command_of_a_block_has_a_valid_config(command: str) -> None:
    assert config_of(command)


def test_no_two_rows_write_to_one_run_folder() -> None:
    outputs = [config_of(command).log.output for _, command in TRAINED]

    assert len(set(outputs)) == len(outputs)


def test_start_weights_are_those_of_a_row() -> None:
    configs = [config_of(command) for command in training_commands()]
    runs = {f"{config.log.output}/last.pt": config for config in configs}
    starts = [config for config in configs if config.model.weights is not None]

    assert len(starts) == 2
    for config in starts:
        start = runs[config.model.weights]
        assert (start.task.name, start.task.frames) == ("plain", [16])
        assert config.optim.lr == pytest.approx(start.optim.lr / 10)
        assert (config.train, config.data) == (start.train, start.data)
        assert (config.optim.schedule, config.optim.milestones) == (
            start.optim.schedule,
            start.optim.milestones,
        )


@pytest.mark.parametrize("command", [s for s in LINES if "tools/test.py" in s])
def test_test_command_reads_what_was_trained(command: str) -> None:
    assert command.startswith("python tools/test.py ")
    arguments = shlex.split(command)[2:]
    given = tool._parser().parse_intermixed_args(arguments)
    tested = load_config(ROOT / given.config, given.options)

    runs = {f"{(c := config_of(line)).log.output}/last.pt": c for line in training_commands()}
    for weights in given.weights:
        if weights in list_weights():
            continue
        config = runs[weights]
        data = (config.data.crop, config.data.resize, config.data.val, config.data.test_protocol)
        assert data == (
            tested.data.crop,
            tested.data.resize,
            tested.data.val,
            tested.data.test_protocol,
        )
        assert config.data.root.rpartition("/")[2] == tested.data.root.rpartition("/")[2]
        assert set(config.task.frames) <= {*given.frames}


def test_every_row_is_tested() -> None:
    tests = " ".join(line for line in LINES if "tools/test.py" in line)

    for label, command in TRAINED:
        assert f"{config_of(command).log.output}/last.pt" in tests, label


def test_numbers_are_those_of_the_headers_of_the_configs() -> None:
    """Of the frame-flexible and the separate networks, by config."""
    number = r"\d\d\.\d\d"
    checked = 0
    for path in sorted((ROOT / "configs").glob("*/*_*.yaml")):
        header = path.read_text().partition("model:")[0]
        row = rf"({number} / {number} / {number})"
        found = re.search(rf"FFN {row}; separate networks {row}", header)
        if found is None:
            continue
        ours, separate = (text.split(" / ") for text in found.groups())
        rows = [r for r in ROWS if f"`tools/train.py {path.relative_to(ROOT)}" in r[-1]]
        assert ours == rows[0][1:4]
        if path.stem != "tsm_r50" or path.parent.name != "sthv1":  # which has a config for them
            assert separate == [row[1 + place] for place, row in enumerate(rows[1:4])]
        checked += 1
    assert checked == 9

    for name in ("mixed_sampling", "proportional_sampling", "finetuned_4", "plain"):
        path = ROOT / f"configs/sthv1/tsm_r50_{name}.yaml"
        header = path.read_text().partition("model:")[0]
        rows = [r for r in ROWS if f"configs/sthv1/{path.name}" in r[-1] and len(r) > 2]
        shown = [cell for row in rows for cell in row if re.fullmatch(number, cell)]
        assert set(shown) == {*re.findall(rf"\b{number}\b", header)}
