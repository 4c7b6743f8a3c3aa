"""Runs with non-finite numbers or unreadable videos: weights do not change in such steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import engine_toys
import pytest
import torch
from engine_toys import (
    CPU,
    after_each_step,
    build,
    read_log,
    state_of,
    train,
    weights,
    write_videos,
)
from torch import Tensor, nn

from ffn.data import VideoError
from ffn.engine import loop, train_step
from ffn.engine.checkpointer import not_finite
from ffn.engine.checkpoints import load_checkpoint
from ffn.engine.mixup import BatchMix
from ffn.engine.tasks import PlainTask
from ffn.engine.train_step import MAX_BAD_STEPS, TrainStep


def poison(monkeypatch: pytest.MonkeyPatch, steps: set[int], value: float = torch.nan) -> None:
    """Write a value into one pixel of the clips of some training batches, counted from 0."""
    to_device, counter = train_step.to_device, iter(range(10**6))

    def poisoned(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        if next(counter) in steps:
            for clip in batch["clips"].values():
                clip[0, 0, 0, 0, 0] = value
        return batch

    monkeypatch.setattr(train_step, "to_device", poisoned)


@pytest.mark.parametrize(("views", "value"), [("together", torch.nan), ("sequential", torch.inf)])
def test_bad_steps_leave_no_trace(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, views: str
) -> None:
    bad = {1, 2, 5, 7}
    poison(monkeypatch, bad, value)
    run = build(videos, tmp_path / "run", "train.save_steps=1", f"train.views={views}")
    model = run.train_step.model
    seen = {-1: state_of(model)}
    after_each_step(run, lambda number: seen.update({number: state_of(model)}))

    loop.train(run)

    for number in range(8):
        assert not not_finite(seen[number])
        same = all(torch.equal(seen[number][key], seen[number - 1][key]) for key in seen[number])
        assert same == (number in bad), number
    entries = read_log(tmp_path / "run")
    assert [e["step"] - 1 for e in entries if e["bad_steps"]] == sorted(bad)
    assert all(("loss" in e) == (not e["bad_steps"]) for e in entries)
    training = load_checkpoint(tmp_path / "run/last.pt")["training"]
    assert (training["bad_steps"], training["bad_steps_in_a_row"]) == (4, 1)
    again = build(videos, tmp_path / "run", "train.save_steps=1", f"train.views={views}")
    again.checkpointer.restore()
    assert (again.train_step.bad_steps, again.train_step.bad_steps_in_a_row) == (4, 1)


def test_steps_around_a_bad_one_equal_a_run_without_its_batch(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out, with an optimizer that never receives the batch."""
    poison(monkeypatch, {1})
    more = ("train.epochs=1", "model.dropout=0")
    loop.train(build(videos, tmp_path / "one", *more))

    other = build(videos, tmp_path / "other", *more)
    step = other.train_step
    batches = list(other.train_loader)
    optimizer = torch.optim.SGD(step.optimizer.param_groups, momentum=0.9)
    for batch in (batches[0], *batches[2:]):
        clips = {t: step.normalize(clip) for t, clip in batch["clips"].items()}
        optimizer.zero_grad()
        step.task({"clips": clips, "label": batch["label"]})["loss"].backward()
        nn.utils.clip_grad_norm_(step.model.parameters(), 20.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * group["lr_scale"]
        optimizer.step()

    expected = step.model.state_dict()
    for key, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)


def test_too_many_in_a_row_end_the_run_and_it_resumes(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("train.save_steps=1", "train.epochs=4")
    with monkeypatch.context() as patch:
        poison(patch, set(range(3, 100)))
        message = rf"the last of {MAX_BAD_STEPS} such steps in a row.*lower optim\.lr"
        with pytest.raises(FloatingPointError, match=message):
            train(videos, tmp_path / "run", *more)
    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 3 + MAX_BAD_STEPS - 1
    assert not not_finite(last["model"])
    train(videos, tmp_path / "run", *more)


def test_logits_that_are_not_finite_in_a_validation(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run")
    next(run.train_step.model.parameters()).data[:] = torch.nan
    with pytest.raises(FloatingPointError, match=r"lower optim\.lr"):
        run.validator.evaluate()


class Averaging(nn.Module):
    """Assigns a new tensor to its buffer in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, clip: Tensor) -> Tensor:
        x = self.fc(clip.mean((2, 3, 4)))
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def test_buffers_that_a_forward_pass_replaces_are_restored() -> None:
    model = Averaging()
    step = TrainStep(
        PlainTask(model, 2),
        torch.optim.SGD([{"params": model.parameters(), "lr_scale": 1.0}], lr=0.1),
        CPU,
        normalize=lambda clip: clip,
        batch_mix=BatchMix(3),
    )

    def run(number: int, value: float) -> Tensor:
        own = {**engine_toys.batch((2,)), "skipped": []}
        own["clips"][2][0] = value
        step.step([own], number=number, lr=0.1)
        return model.mean.clone()

    one, two = run(0, 1.0), run(1, 2.0)
    assert not torch.equal(one, two)
    assert torch.equal(run(2, torch.nan), two)
    assert step.bad_steps == 1


# --- unreadable videos --------------------------------------------------------------------------

SINGLE = ("train.batch_size=1", "data.on_error=skip")


def test_a_broken_video_alone_in_its_batch(tmp_path: Path) -> None:
    """Its step is skipped; too many such steps end the run; without on_error, the first does."""
    (tmp_path / "broken").mkdir()
    broken = write_videos(tmp_path / "broken", train=6, val=3)
    (broken / "train_3.mp4").write_bytes(b"no video")
    run = build(broken, tmp_path / "run", *SINGLE)
    model, seen, order = run.train_step.model, [], []
    after_each_step(run, lambda _: seen.append(state_of(model)))
    loop.train(run)
    for epoch in range(2):
        run.train_loader.sampler.set_epoch(epoch)
        order += [key[1] for key in run.train_loader.sampler]
    for number in range(1, 12):
        same = all(torch.equal(v, seen[number - 1][k]) for k, v in seen[number].items())
        assert same == (order[number] == 3), number

    with pytest.raises(VideoError, match=r"train_3\.mp4"):
        train(broken, tmp_path / "fails", *SINGLE, "data.on_error=fail")
    for number in range(6):
        (broken / f"train_{number}.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match=r"no training video of epoch 1 can be read"):
        train(broken, tmp_path / "none", *SINGLE)
