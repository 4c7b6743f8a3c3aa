"""Training at ranges of counts: the clips of a step, its losses, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import (
    CPU,
    DRAWS,
    RANGES,
    build,
    load_config,
    read_log,
    same_weights,
    state_of,
    tiny,
    toy_step,
    train,
)
from torch import nn

import ffn
from ffn.engine.build_network import build_model
from ffn.engine.tasks import FlexibleTask

PLAIN = ("task.name=plain", "task.frames=[4]", "task.ranges=[[2,9]]")


def lengths(run: Any) -> list[dict[int, int]]:
    """Number of frames of each view, per batch of the first epoch."""
    run.train_loader.sampler.set_epoch(0)
    return [{v: clip.shape[2] for v, clip in b["clips"].items()} for b in run.train_loader]


@pytest.mark.parametrize(
    ("counts", "views"),
    [
        (RANGES, {2: range(1, 5), 8: range(5, 13)}),
        (DRAWS, {4: range(1, 5), 12: range(5, 13)}),
        (PLAIN, {4: range(2, 10)}),
    ],
    ids=["ranges", "draws", "plain"],
)
def test_every_step_has_its_own_lengths(
    videos: Path, tmp_path: Path, counts: tuple[str, ...], views: dict[int, range]
) -> None:
    found = lengths(build(videos, tmp_path / "run", *counts, "train.batch_size=2"))

    assert len(found) == 12
    for view, allowed in views.items():
        drawn = {step[view] for step in found}
        assert drawn <= {*allowed}
        assert len(drawn) > 1
    more = ("train.batch_size=4", "train.grad_accum_steps=2")
    accumulated = lengths(build(videos, tmp_path / "run", *counts, *more))
    assert accumulated[::2] == accumulated[1::2] == found[:6]


def published(run: Path, folder: Path) -> tuple[nn.Module, ffn.zoo.WeightRecord, nn.Module]:
    """The network of a checkpoint, its record, and the network of a file that has both."""
    model, record = ffn.zoo.load_with_record(run / "last.pt")
    path = folder / "own.safetensors"
    ffn.zoo.save_weights(model, path, record.to_dict() | {"name": "own"})
    return model, record, ffn.load(path)


def test_interpolation_is_for_tests_and_is_recorded(videos: Path, tmp_path: Path) -> None:
    """The training does not change; validation, the checkpoint and a published file have it."""
    options = ("task.frames=[2,8]", "data.test_frames=[5]", "train.epochs=1")
    nearest = train(videos, tmp_path / "nearest", *options)
    run = train(videos, tmp_path / "run", *options, "task.interpolate=true")
    model, record, again = published(run, tmp_path)
    clip = torch.randn(1, 3, 5, 16, 16)
    logits = model(clip)

    assert same_weights(nearest, run)
    assert record.interpolate
    assert "interpolate" not in ffn.zoo.load_with_record(nearest / "last.pt")[1].to_dict()
    assert model.active == 5
    assert torch.equal(again(clip), logits)
    again.interpolate = False
    assert torch.equal(again(clip), ffn.load(nearest / "last.pt")(clip))
    assert not torch.allclose(again(clip), logits)


def test_weights_know_their_ranges(videos: Path, tmp_path: Path) -> None:
    """The owner of a range answers, from a checkpoint and from a published file."""
    run = train(videos, tmp_path / "run", *RANGES, "train.epochs=1")
    model, record, again = published(run, tmp_path)

    assert (record.trained_frames, record.ranges) == ((2, 8), ((1, 4), (5, 12)))
    for network in (model, again):
        assert network.ranges == {2: (1, 4), 8: (5, 12)}
        for frames, owner in {1: 2, 4: 2, 5: 8, 12: 8, 30: 8}.items():
            clip = torch.randn(1, 3, frames, 16, 16)
            assert torch.equal(network(clip), network(clip, active=owner))
            assert network.active == owner
    (validation,) = read_log(run, "val")
    assert {"top1/1", "top1/2", "top1/3", "top1/6", "top1/8", "top1/16"} <= validation.keys()


def test_draws_run_the_owners_of_their_counts() -> None:
    """Two views, of 4 and 7 frames, of three sub-networks: the losses by hand; one has none."""
    config = load_config(None, ["model.name=tsm_tiny", *DRAWS, "model.dropout=0"])
    torch.manual_seed(0)
    model = build_model(config, 5)
    task = FlexibleTask.from_options(model, config.task)
    clips = {4: torch.randn(2, 3, 4, 32, 32), 12: torch.randn(2, 3, 7, 32, 32)}
    outputs = task({"clips": clips, "label": torch.tensor([1, 4])})
    outputs["loss"].backward()

    with torch.no_grad():  # batch statistics, as above
        large, small = model(clips[12], active=8), model(clips[4], active=3)
    cross_entropy = -(large.log_softmax(1)[[0, 1], [1, 4]]).mean()
    teacher = large.softmax(1)
    kl = (teacher * (teacher.log() - small.log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(outputs["loss/ce_12"], cross_entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs["loss/kl_4"], kl, rtol=1e-4, atol=1e-5)
    norms = {name: p for name, p in model.named_parameters() if ".bn" in name}
    assert {name.split(".")[-2] for name in norms} == {"1", "3", "8"}
    assert {name.split(".")[-2] for name, p in norms.items() if p.grad is not None} == {"3", "8"}


def test_sub_networks_that_are_not_drawn_do_not_change() -> None:
    """Also not by momentum."""
    torch.manual_seed(0)
    model = ffn.convert(tiny(), {count: (count, count) for count in (2, 3, 4, 5)})
    step = toy_step(CPU, FlexibleTask(model, (3, 5)), momentum=0.9, grad_accum_steps=2)

    def drawn(small: int, large: int) -> dict[str, Any]:
        clips = {3: torch.randn(2, 3, small, 16, 16), 5: torch.randn(2, 3, large, 16, 16)}
        return {"clips": clips, "label": torch.arange(2), "skipped": []}

    step.step([drawn(2, 4), drawn(2, 4)], number=0, lr=0.1)
    before = state_of(model.model)
    step.step([drawn(3, 5), drawn(3, 5)], number=1, lr=0.1)

    after = dict(model.model.named_parameters())
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    private = [name for name in after if "bn" in name or ".site." in name]
    assert not changed.intersection(n for n in private if ".2." in n or ".4." in n)
    assert changed.issuperset(n for n in private if "bn" in n and (".3." in n or ".5." in n))
