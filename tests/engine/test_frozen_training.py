"""Training with a frozen part: what moves in the weights, the average and the statistics."""

from __future__ import annotations

from pathlib import Path

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

import ffn
from ffn.engine import loop
from ffn.engine.checkpointer import gather_buffers, load_buffers
from ffn.engine.config import ConfigError

# Much decay, and an average that moves fast.
HARSH = ("optim.weight_decay=0.1", "train.ema_decay=0.5", "train.epochs=1", "optim.milestones=[]")


@pytest.mark.parametrize(
    ("part", "more"),
    [
        ("blocks:1", ()),
        ("net.layer1", ("train.views=sequential",)),
        ("norms", ()),
    ],
)
def test_what_does_not_train(
    videos: Path, tmp_path: Path, part: str, more: tuple[str, ...]
) -> None:
    """In the weights, their average and the statistics."""
    run = build(videos, tmp_path / "run", *HARSH, f"train.freeze=[{part}]", *more)
    before = state_of(run.train_step.model)
    loop.train(run)

    names = {*before}
    layer1 = {name for name in names if name.startswith("net.layer1.")}
    stem = {name for name in names if name.startswith(("net.conv1.", "net.bn1."))}
    norms = {name.rpartition(".")[0] for name in names if name.endswith("running_mean")}
    expected = {
        "blocks:1": layer1 | stem,
        "net.layer1": layer1,
        "norms": {name for name in names if name.rpartition(".")[0] in norms},
    }[part]
    for model in (run.train_step.model, run.train_step.network):
        after = model.state_dict()
        same = {name for name in names if torch.equal(after[name], before[name])}
        assert expected == {name for name in same if "num_batches" not in name or name in expected}


def test_a_resumed_run_keeps_its_part_frozen(videos: Path, tmp_path: Path) -> None:
    more = ("train.freeze=[blocks:2]", "train.ema_decay=0.9", "train.save_steps=1")
    train_until(3, videos, tmp_path / "killed", *more)
    run = build(videos, tmp_path / "killed", *more)
    (line,) = (line for line in run.introduction if line.startswith("frozen: blocks:2; "))
    sizes = [(p.numel(), p.requires_grad) for p in run.train_step.model.parameters()]
    trained, total = sum(n for n, trains in sizes if trains), sum(n for n, _ in sizes)
    assert line.endswith(f"; {trained:,} of {total:,} parameters train")
    loop.train(run)
    assert same_weights(tmp_path / "killed", train(videos, tmp_path / "whole", *more))


@pytest.mark.parametrize("option", ["train.freeze=[net.layr1]", "train.freeze=['*']"])
def test_what_cannot_be_frozen(videos: Path, tmp_path: Path, option: str) -> None:
    with pytest.raises(ConfigError, match=r"layr1|no parameter is left"):
        build(videos, tmp_path, option)


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
