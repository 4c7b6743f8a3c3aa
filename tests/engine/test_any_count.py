"""Training at ranges of counts: resumed, in two processes, in every mode, and what is saved."""

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
    load_config,
    read_log,
    same_weights,
    tiny,
    train,
    train_until,
    weights,
)
from torch import nn

import ffn
from ffn.engine.build_network import build_model
from ffn.engine.config import ConfigError
from ffn.engine.tasks import FlexibleTask
from ffn.engine.train_step import TrainStep

RANGES = ("task.frames=[2,8]", "task.ranges=[[1,4],[5,12]]", "data.test_frames=[1,3,6,16]")

# Three sub-networks, two views: each step runs two or three of the counts' owners, not all.
DRAWS = (
    "task.frames=[1,3,8]", "task.ranges=[[1,2],[3,5],[6,12]]", "task.draws=[[1,4],[5,12]]",
    "data.test_frames=[1,3,6,16]",
)  # fmt: skip


def lengths(run: Any) -> list[dict[int, int]]:
    """Number of frames of each view, per batch of the first epoch."""
    run.train_loader.sampler.set_epoch(0)
    return [{v: clip.shape[2] for v, clip in b["clips"].items()} for b in run.train_loader]


PLAIN = ("task.name=plain", "task.frames=[4]", "task.ranges=[[2,9]]")


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


@pytest.mark.parametrize(
    "option",
    [
        *(
            f"task.ranges={r}"
            for r in ("[[1,4]]", "[[1,4],[4,12]]", "[[3,4],[5,12]]", "[[4],[5,12]]")
        ),
        *(f"task.draws={d}" for d in ("[[1,4]]", "[[1,5],[5,12]]", "[[1],[2,12]]")),
    ],
)
def test_counts_that_do_not_fit_are_refused(option: str) -> None:
    ranges = "task.ranges=[[1,4],[5,12]]"
    assert load_config(None, ["task.frames=[2,8]", ranges, "task.draws=[[1,12]]"])
    with pytest.raises(ConfigError, match=f"^{option.partition('=')[0]} is "):
        load_config(None, ["task.frames=[2,8]", ranges, option])


@pytest.mark.slow
@pytest.mark.parametrize("counts", [RANGES, DRAWS], ids=["ranges", "draws"])
def test_resumed_run_equals_an_uninterrupted_one(
    videos: Path, tmp_path: Path, counts: tuple[str, ...]
) -> None:
    more = (*counts, "train.save_steps=1", "train.grad_accum_steps=2", "train.ema_decay=0.9")
    whole = train(videos, tmp_path / "whole", *more)

    for step in (1, 3, 5):
        train_until(step, videos, tmp_path / "run", *more)
    train(videos, tmp_path / "run", *more, "data.workers=1")

    assert same_weights(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "option"),
    [
        (RANGES, "data.cache_gib=1"),
        (DRAWS, "train.views=sequential"),
    ],
)
def test_same_training_in_other_modes(
    videos: Path, tmp_path: Path, counts: tuple[str, ...], option: str
) -> None:
    more = (*counts, "model.dropout=0")
    one = train(videos, tmp_path / "one", *more)
    other = train(videos, tmp_path / "other", *more, option)

    for key, value in weights(other).items():
        torch.testing.assert_close(value, weights(one)[key], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (*RANGES, "train.views=sequential"),
        (*DRAWS, "train.batch_size=4", "train.grad_accum_steps=2"),
    ],
)
def test_two_processes_train_as_one(videos: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    more = ("train.freeze=[norms]", "model.dropout=0", "optim.lr=1e-3", *more)
    process = launch(videos, tmp_path / "two", *more, processes=2)
    one = train(videos, tmp_path / "one", *more)
    finish(process)

    losses = [[entry["loss"] for entry in read_log(f)] for f in (tmp_path / "two", one)]
    # Rounding moves a feature across the zero of a ReLU, and later steps amplify the difference.
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=3e-3)
    for key, value in weights(tmp_path / "two").items():
        torch.testing.assert_close(value, weights(one)[key], rtol=1e-4, atol=1e-5)


def test_interpolation_is_for_tests_and_is_recorded(videos: Path, tmp_path: Path) -> None:
    """The training does not change; validation, the checkpoint and a published file have it."""
    options = ("task.frames=[2,8]", "data.test_frames=[5]", "train.epochs=1")
    nearest = train(videos, tmp_path / "nearest", *options)
    run = train(videos, tmp_path / "run", *options, "task.interpolate=true")
    model, record = ffn.zoo.load_with_record(run / "last.pt")
    ffn.zoo.save_weights(model, tmp_path / "own.safetensors", record.to_dict() | {"name": "own"})
    clip = torch.randn(1, 3, 5, 16, 16)
    logits = model(clip)

    assert same_weights(nearest, run)
    assert record.interpolate
    assert "interpolate" not in ffn.zoo.load_with_record(nearest / "last.pt")[1].to_dict()
    assert model.active == 5
    again = ffn.load(tmp_path / "own.safetensors")
    assert torch.equal(again(clip), logits)
    again.interpolate = False
    assert torch.equal(again(clip), ffn.load(nearest / "last.pt")(clip))
    assert not torch.allclose(again(clip), logits)


def test_weights_know_their_ranges(videos: Path, tmp_path: Path) -> None:
    """The owner of a range answers, from a checkpoint and from a published file."""
    run = train(videos, tmp_path / "run", *RANGES, "train.epochs=1")
    model, record = ffn.zoo.load_with_record(run / "last.pt")
    ffn.zoo.save_weights(model, tmp_path / "own.safetensors", record.to_dict() | {"name": "own"})
    again = ffn.load(tmp_path / "own.safetensors")

    assert record.trained_frames == (2, 8)
    assert record.ranges == ((1, 4), (5, 12))
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
    private = {
        n: p for n, p in model.named_parameters() if {"1", "3", "8"} & {*n.split(".")[-2:-1]}
    }
    learned = {n.split(".")[-2] for n, p in private.items() if p.grad is not None}
    assert learned == {"3", "8"}
    assert sum(".1." in n for n in private) > 5


def test_sub_networks_that_are_not_drawn_do_not_change() -> None:
    """Also not by momentum, if a micro-batch of the step has no video."""
    torch.manual_seed(0)
    owners = {count: (count, count) for count in (2, 3, 4, 5)}
    model = ffn.convert(tiny(), owners).train()
    task = FlexibleTask(model, (3, 5))
    group = {"params": list(model.parameters()), "lr_scale": 1.0}
    step = TrainStep(
        task,
        torch.optim.SGD([group], lr=0.1, momentum=0.9, weight_decay=0.1),
        CPU,
        normalize=nn.Identity(),
        batch_mix=lambda batch, **_: batch,
        grad_accum_steps=2,
        may_skip=True,
    )

    def drawn(small: int, large: int, *, videos: bool = True) -> dict[str, Any]:
        index = torch.arange(2 if videos else 0)
        clips = {3: torch.randn(2, 3, small, 16, 16), 5: torch.randn(2, 3, large, 16, 16)}
        one = {"clips": clips if videos else {}, "label": index, "index": index}
        return one | {"skipped": [] if videos else ["a.mp4: bad"]}

    step.step([drawn(2, 4), drawn(2, 4)], number=0, lr=0.1)
    before = {name: value.clone() for name, value in model.named_parameters()}
    step.step([drawn(3, 5), drawn(3, 5)], number=1, lr=0.1)
    owned = {n: any(f".{k}." in n for k in (2, 4)) for n in before if "bn" in n or ".site." in n}
    changed = {name: not torch.equal(before[name], dict(model.named_parameters())[name])
               for name in owned}  # fmt: skip
    assert not any(changed[name] for name, other in owned.items() if other)
    assert all(changed[name] for name, other in owned.items() if not other and "bn" in name)
