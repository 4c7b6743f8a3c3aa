"""Training with a frozen part: what moves in the weights, the average and the statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import (
    CPU,
    build,
    finish,
    launch,
    read_log,
    same_weights,
    state_of,
    train,
    train_until,
    weights,
)
from rank_cases import averaged_statistics
from ranks import Ranks
from torch import nn

import ffn
from ffn.engine import loop
from ffn.engine.checkpointer import gather_buffers, load_buffers
from ffn.engine.config import ConfigError
from ffn.engine.freezing import freeze, frozen_parts

FIRST = {
    "tsm_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "tea_tiny": ("net.conv1", "net.bn1", "net.layer1"),
    "slowfast_tiny": ("slow.stem", "fast.stem", "slow.stages.0", "fast.stages.0", "fusions.0"),
    "uniformer_tiny": ("embeds.0", "blocks.0"),
}
HEAD = {
    "tsm_tiny": "net.fc",
    "tea_tiny": "net.fc",
    "slowfast_tiny": "head",
    "uniformer_tiny": "head",
}
# Much decay, an average that moves fast, and exact statistics.
HARSH = ("optim.weight_decay=0.1", "train.ema_decay=0.5", "train.epochs=1", "optim.milestones=[]")
TASKS = {"flexible": "task.frames=[2,4]", "plain": "task.frames=[4]"}


def moved(videos: Path, folder: Path, *more: str) -> tuple[set[str], set[str], list[str]]:
    """Entries that change in training and those that do not; the start lines of the run.

    An entry that changes in the weights or in their average counts as changed.
    """
    run = build(videos, folder, *HARSH, *more)
    before = state_of(run.train_step.model)
    loop.train(run)
    after, average = (state_of(m) for m in (run.train_step.model, run.train_step.network))
    same = {
        key
        for key, value in before.items()
        if torch.equal(after[key], value) and torch.equal(average[key], value)
    }
    return set(before) - same, same, [*run.introduction, *run.settings]


def inside(names: set[str], parts: tuple[str, ...]) -> set[str]:
    return {name for name in names if name.startswith(tuple(f"{part}." for part in parts))}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", FIRST)
def test_a_linear_probe_trains_the_classifier_alone(
    videos: Path, tmp_path: Path, name: str, task: str
) -> None:
    more = (f"model.name={name}", f"task.name={task}", TASKS[task], "train.freeze=[head_only]")
    changed, same, lines = moved(videos, tmp_path / "run", *more)

    assert changed == {f"{HEAD[name]}.weight", f"{HEAD[name]}.bias"}
    assert any("running_mean" in key for key in same)
    (line,) = (line for line in lines if line.startswith("frozen: "))
    model = build(videos, tmp_path / "other", *more).train_step.model
    sizes = {key: p.numel() for key, p in model.named_parameters()}
    head = sum(size for key, size in sizes.items() if f"{HEAD[name]}." in key)
    assert line.endswith(f"; {head:,} of {sum(sizes.values()):,} parameters train")
    assert HEAD[name] not in line


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("precise", [0, 1])
def test_frozen_blocks_keep_weights_and_statistics(
    videos: Path, tmp_path: Path, name: str, precise: int
) -> None:
    more = (f"model.name={name}", "train.freeze=[blocks:1]", f"train.precise_bn={precise}")
    changed, same, lines = moved(videos, tmp_path / "run", *more)

    assert inside(same, FIRST[name])
    assert not inside(changed, FIRST[name])
    rest = (same | changed) - inside(same, FIRST[name])
    assert not {key for key in rest - changed if "num_batches" not in key}
    (line,) = (line for line in lines if line.startswith("frozen: "))
    assert all(part in line for part in FIRST[name])


def test_a_private_classifier_trains_in_all_its_copies(videos: Path, tmp_path: Path) -> None:
    changed, same, _ = moved(
        videos, tmp_path / "run", "task.private=all", "train.freeze=[head_only]"
    )
    assert changed == {f"net.fc.{count}.{key}" for count in (2, 4) for key in ("weight", "bias")}
    assert same


def test_modules_by_name_and_views_one_by_one(videos: Path, tmp_path: Path) -> None:
    more = ("train.freeze=[net.layer*, net.fc.bias]", "train.views=sequential")
    changed, same, lines = moved(videos, tmp_path / "run", *more)

    assert {key.split(".")[1] for key in changed} == {"conv1", "bn1", "fc"}
    assert "net.fc.bias" in same
    assert any(
        line.startswith("frozen: net.layer1, net.layer2, net.layer3, net.layer4, net.fc.bias;")
        for line in lines
    )


def test_a_resumed_run_keeps_its_part_frozen(videos: Path, tmp_path: Path) -> None:
    more = ("train.freeze=[blocks:2]", "train.ema_decay=0.9", "train.save_steps=1")
    train_until(3, videos, tmp_path / "killed", *more)
    run = build(videos, tmp_path / "killed", *more)
    assert any(line.startswith("frozen: ") for line in loop_lines(run))
    loop.train(run)
    assert same_weights(tmp_path / "killed", train(videos, tmp_path / "whole", *more))


def loop_lines(run: Any) -> list[str]:
    """Start lines of a resumed run."""
    with run.checkpointer.lock():
        return loop.start_lines(run, run.checkpointer.restore())


@pytest.mark.slow
def test_three_processes_do_not_round_frozen_statistics(tmp_path: Path) -> None:
    """A sum of three equal numbers divided by three may be another number."""
    ranks = Ranks(3, tmp_path)
    try:
        for result in ranks.run(averaged_statistics):
            assert result == {"frozen": True, "trained": False}
    finally:
        ranks.close()


def test_statistics_of_three_writers_are_not_rounded() -> None:
    model = ffn.create_model("tsm_tiny", num_classes=3)
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(1, 2)
    ffn.freeze(model, "net.layer1")
    before = state_of(model)
    load_buffers(model, gather_buffers(model, CPU) * 3, CPU)
    after = model.state_dict()
    statistics = [key for key in before if "running" in key]
    assert all(torch.equal(before[k], after[k]) for k in statistics if k.startswith("net.layer1."))
    assert not all(torch.equal(before[k], after[k]) for k in statistics)


class Nameless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


def test_a_classifier_that_cannot_be_found() -> None:
    with pytest.raises(ValueError, match="a Nameless has no get_classifier"):
        freeze(Nameless(), "head_only")
    model = ffn.create_model("tsm_tiny", num_classes=3)
    model.reset_classifier(0)
    with pytest.raises(ValueError, match="the TSM has no classifier to train"):
        freeze(model, "head_only")
    assert frozen_parts(model) == []


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train.freeze=[blocks:9]", r"tsm_tiny.*blocks:9; a TSM has 4 blocks"),
        ("train.freeze=[net.layr1]", r"'net.layr1' matches no module; did you mean"),
        ("train.freeze=['*']", "no parameter is left to train"),
    ],
)
def test_what_the_network_does_not_have(
    videos: Path, tmp_path: Path, option: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(videos, tmp_path, option)


def test_frozen_random_weights_are_warned_of(videos: Path, tmp_path: Path, finished: Path) -> None:
    def warned(*more: str) -> list[str]:
        return [x for x in build(videos, tmp_path, *more).settings if "random weights" in x]

    (text,) = warned("train.freeze=[head_only]")
    assert text.startswith("warning: train.freeze")
    assert not warned("train.freeze=[blocks:1]", f"model.weights={finished / 'best.pt'}")
    assert not warned("train.freeze=[norms]")


@pytest.mark.slow
def test_two_processes_probe_as_one(videos: Path, start: str, tmp_path: Path) -> None:
    """With class weights, whose sum differs between the two halves of a batch."""
    more = (start, "train.freeze=[head_only]", "train.class_weights=balanced", "model.dropout=0")
    process = launch(videos, tmp_path / "two", *more, processes=2)
    one = train(videos, tmp_path / "one", *more)
    out, _ = finish(process)

    assert "class weights: " in out
    for key in ("loss", "loss/kl_2", "grad_norm"):
        found, expected = ([e[key] for e in read_log(tmp_path / f)] for f in ("two", "one"))
        assert found == pytest.approx(expected, rel=1e-4)
    before, after = weights(Path(start.partition("=")[2]).parent, "start.pt"), weights(one)
    two = weights(tmp_path / "two")
    same = {key for key in before if not key.startswith("net.fc.")}
    assert all(torch.equal(before[key], w[key]) for key in same for w in (after, two))
    assert not torch.equal(before["net.fc.weight"], two["net.fc.weight"])
