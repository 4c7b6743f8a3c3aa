"""The numbers of docs/choosing_frame_counts.md are those of their tables and results."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path

import pytest

import ffn
from ffn import backbones
from ffn.cli import benchmark
from ffn.cli import test as tool
from ffn.data import sampling
from ffn.engine.config import load_config

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/choosing_frame_counts.md").read_text()
TEXT = " ".join(PAGE.split())
PAPER = (ROOT / "docs/paper_tables.md").read_text()
ZOO = (ROOT / "model_zoo/README.md").read_text()
MOTION = json.loads((ROOT / "model_zoo/results/motion.json").read_text())["runs"]
COUNTS = ("4", "6", "8", "10", "12", "14", "16")
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in block.splitlines()
]


def rows(text: str, label: str) -> list[list[str]]:
    """The cells behind the first one, of all table rows with this label."""
    found = [line for line in text.splitlines() if line.startswith(f"| {label} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in found]


def row(text: str, label: str) -> list[str]:
    (cells,) = rows(text, label)
    return cells


def reported(label: str) -> dict[str, str]:
    """Accuracies of the paper's table of any frame count, by count."""
    part = PAPER.partition("## Any frame count")[2].partition("\n## ")[0]
    return dict(zip(COUNTS, row(part, label), strict=False))


def motion(run: str) -> dict[int, dict[str, float]]:
    return {entry["frames"]: entry for entry in MOTION[run]["rows"]}


@pytest.mark.parametrize(
    ("label", "paper"),
    [
        ("16 only", "trained at 16 only; ST at 16"),
        ("4, 16", "FFN 4/16"),
        ("4, 8, 16", "FFN 4/8/16"),
        ("4, 10, 16", "FFN 4/10/16"),
        ("4, 8, 12, 16", "FFN 4/8/12/16"),
    ],
)
def test_reported_accuracies(label: str, paper: str) -> None:
    cells = next(cells for cells in rows(PAGE, label) if len(cells) == 7)
    assert dict(zip(COUNTS, cells, strict=True)) == {t: reported(paper)[t] for t in COUNTS}


def test_reported_accuracies_of_separate_networks() -> None:
    assert row(PAGE, "trained at") == [*COUNTS]
    expected = {t: reported(f"ST at {t}")[t] for t in COUNTS[:-1]}
    expected["16"] = reported("trained at 16 only; ST at 16")["16"]
    assert dict(zip(COUNTS, row(PAGE, "each count alone"), strict=True)) == expected
    assert f"have {expected['4']}, {expected['8']} and {expected['16']} at 4, 8 and 16" in TEXT


def test_sentences_about_reported_accuracies() -> None:
    two, three, other, four = (
        {t: float(reported(f"FFN {name}")[t]) for t in COUNTS}
        for name in ("4/16", "4/8/16", "4/10/16", "4/8/12/16")
    )
    assert ffn.nearest(8, (4, 16)) == 4
    assert f"has {two['8']:.2f} at 8 frames" in TEXT
    assert f"with 8 among the counts it has {three['8']:.2f}" in TEXT
    gains = {t: round(four[t] - three[t], 2) for t in COUNTS}
    elsewhere = max(gain for t, gain in gains.items() if t != "12")
    assert f"gains {gains['12']:.2f} points at 12 frames, and {elsewhere:.2f} or less" in TEXT
    gain, loss = other["10"] - three["10"], three["6"] - other["6"]
    assert f"gains {gain:.2f} at 10 frames, and loses {loss:.2f} at 6" in TEXT
    assert loss == max(three[t] - other[t] for t in COUNTS)

    first = row(PAPER.partition("## Any frame count")[0], "FFN 4/8/16")
    sets = [
        first,
        *(row(PAPER, f"TSM-R50, {name}, FFN") for name in ("Sth V2", "Kinetics-400", "HMDB51")),
    ]
    gained = [f"{float(cells[2]) - float(cells[0]):.2f}" for cells in sets]
    shown = re.findall(r"gains ([\d.]+) points on Something.*?([\d.]+) on V2, ([\d.]+) on K", TEXT)
    assert [*shown[0], *re.findall(r"and ([\d.]+) on HMDB51", TEXT)] == gained
    (beyond,) = re.findall(r"reports FFN 4/8/16 at \+([\d.]+)", PAPER)
    assert f"At 2 frames, the network of the paper is {beyond} points above" in TEXT


def test_measured_accuracies() -> None:
    found = motion("flexible")
    header = next(line for line in PAGE.splitlines() if line.startswith("| frames | 2 |"))
    counts = [int(count) for count in re.findall(r"\d+", header)]
    shown = [float(cell) for cell in row(PAGE, "top-1")]
    assert counts == [*found]
    assert shown == pytest.approx([found[t]["top1_mean"] for t in counts], abs=0.0501)

    accuracy = {t: entry["top1_mean"] for t, entry in found.items()}
    assert accuracy[10] < accuracy[8]
    assert max(accuracy[18], accuracy[20]) < accuracy[16]
    assert f"has {accuracy[2]:.1f} against {accuracy[4]:.1f} at 4 frames" in TEXT
    assert f"chance is {100 / 12:.1f}" in TEXT
    plain = [motion(f"plain_{t}")[4]["top1_mean"] for t in (16, 4)]
    assert f"has {plain[0]:.1f} at 4 frames, and one trained at 4 has {plain[1]:.1f}" in TEXT
    deviations = [found[t]["top1_std"] for t in (4, 8, 16)]
    deviations += [motion(f"plain_{t}")[t]["top1_std"] for t in (4, 8, 16)]
    assert f"is up to {max(deviations):.1f} at trained counts" in TEXT
    assert len(found[4]["top1"]) == 3  # "three seeds"


@pytest.mark.parametrize("model", ["tsm_r50", "slowfast_r50", "slowfast_r50_4x16", "uniformer_s"])
def test_costs_of_clips(model: str) -> None:
    costs = next(cells for cells in rows(ZOO, f"`{model}`") if "%" in cells[1])
    shown = row(PAGE, f"`{model}`")
    assert shown == costs[2:6]
    header = next(cells for cells in rows(ZOO, "model") if "4 frames" in cells)
    assert row(PAGE, "model") == header[2:6]
    assert "174 classes at 224 px" in TEXT
    assert "174 classes at 224 px" in ZOO
    if model == "uniformer_s":
        assert f"cost {float(shown[2]) / float(shown[1]):.1f} times" in TEXT
    if model in ("tsm_r50", "slowfast_r50"):
        assert float(shown[3]) / float(shown[0]) == pytest.approx(8, rel=1e-3)


def test_slow_frames() -> None:
    """Alpha, and that a clip with a frame more than a multiple of it has another slow frame."""
    alphas = {"slowfast_r50": 4, "slowfast_r50_8x8": 4, "slowfast_r101": 4, "slowfast_r50_4x16": 8}
    for model, alpha in alphas.items():
        assert backbones.build(model, num_classes=2).alpha == alpha
    assert "Alpha is 4, for `slowfast_r50_4x16` 8." in TEXT
    assert f"a clip spans {sampling.WINDOW} frames of the video" in TEXT
    slow_frames = inspect.getmodule(backbones.SlowFast).slow_frames
    for alpha in (4, 8):
        for frames in range(1, 40):
            assert len(slow_frames(frames, alpha)) == -(-frames // alpha)
    config = load_config(ROOT / "configs/sthv1/slowfast_r50.yaml")
    assert "SlowFast at {}, {} and {}.".format(*config.task.frames) in TEXT


def test_costs_of_steps() -> None:
    for label in ("16", "4, 16", "4, 8, 16", "4, 10, 16", "4, 8, 12, 16"):
        frames = sum(int(count) for count in label.split(", "))
        (cells,) = (cells for cells in rows(PAGE, label) if len(cells) == 2)
        assert cells == [str(frames), f"{frames / 16:.2f}"]
    assert f"need the same {4 + 8 + 16} frames" in TEXT
    assert f"It adds {40 - 28} frames per video" in TEXT
    memory = [
        float(cell) for cell in row((ROOT / "docs/training_memory.md").read_text(), "sequential")
    ]
    low, high = min(memory[::2]), max(memory[::2])
    assert f"{low:.2f} to {high:.2f} of the memory" in TEXT
    assert all(0.9 < time < 1 for time in memory[1::2])  # "about the same time"
    for model in ("tsm_r50", "tsm_mobilenetv2"):
        added = next(cells[1] for cells in rows(ZOO, f"`{model}`") if "%" in cells[1])
        assert re.search(rf"{re.escape(added[1:])} to (the parameters|those) of `{model}`", TEXT)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_commands_are_valid(command: list[str]) -> None:
    script, *arguments = command
    assert (ROOT / script).is_file()
    if script == "tools/train.py":
        config, *options = arguments
        assert load_config(ROOT / config, options).task.frames == [4]
    elif script == "tools/test.py":
        given = tool._parser().parse_with_overrides(arguments)
        config = load_config(ROOT / given.config, given.options)
        assert given.weights == [f"{config.log.output}/last.pt"]
        assert {*config.task.frames} < {*given.frames}
    elif script == "tools/benchmark.py":
        assert benchmark._parser().parse_args(arguments).frames
    else:
        assert script == "tools/zoo.py"
