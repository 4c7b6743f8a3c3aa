"""Runs with non-finite numbers: weights, statistics and checkpoints do not contain them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import engine_toys
import pytest
import torch
from engine_toys import (
    CPU,
    Killed,
    after_each_step,
    build,
    read_log,
    state_of,
    train,
    weights,
)
from torch import Tensor, nn

from ffn.engine import loop, train_step
from ffn.engine.checkpoints.checkpointer import not_finite
from ffn.engine.checkpoints.file import load_checkpoint
from ffn.engine.logs.run_log import BadBatches
from ffn.engine.mixup import BatchMix
from ffn.engine.signals import StoppedError
from ffn.engine.tasks import PlainTask
from ffn.engine.train_step import TrainStep

LISTED = "bad_batches.jsonl"


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


@pytest.mark.parametrize("views", ["together", "sequential"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_ten_bad_steps_leave_no_trace(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, views: str
) -> None:
    bad = {1, 2, 5, 8, 11, 12, 13, 17, 20, 22}
    poison(monkeypatch, bad, value)
    more = ("train.batch_size=2", "train.save_steps=1", "train.max_bad_steps=4")
    run = build(videos, tmp_path / "run", *more, f"train.views={views}")
    model = run.train_step.model
    seen = {-1: state_of(model)}
    after_each_step(run, lambda number: seen.update({number: state_of(model)}))

    loop.train(run)

    for number in range(24):
        assert not not_finite(seen[number])
        same = all(torch.equal(seen[number][key], seen[number - 1][key]) for key in seen[number])
        assert same == (number in bad), number
    lines = [json.loads(line) for line in (tmp_path / "run" / LISTED).read_text().splitlines()]
    assert [line["step"] for line in lines] == [number + 1 for number in sorted(bad)]
    for line in lines:
        (own,) = line["ranks"]
        assert len(own["videos"]) == 2
        assert all(Path(path).is_file() for path in own["videos"])
        assert own["loss"] in (["nan"], ["inf"], ["-inf"])
    entries = read_log(tmp_path / "run")
    assert [e["step"] - 1 for e in entries if e["bad_steps"]] == sorted(bad)
    assert all(("loss" in e) == (not e["bad_steps"]) for e in entries)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["guard"]["total"] == 10


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


def test_too_many_in_a_row_end_the_run_and_name_the_videos(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("train.save_steps=1", "train.max_bad_steps=3")
    with monkeypatch.context() as patch:
        poison(patch, set(range(3, 100)))
        message = rf"the last of 3 such steps in a row\. .*{LISTED} lists the videos.*optim\.lr"
        with pytest.raises(FloatingPointError, match=message):
            train(videos, tmp_path / "run", *more)

    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 4  # saved after one bad step, and not after two
    assert not not_finite(last["model"])
    whole = train(videos, tmp_path / "whole", *more)
    assert len(read_log(train(videos, tmp_path / "run", *more))) == len(read_log(whole))


def test_a_run_stopped_after_bad_steps_only_resumes(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first checkpoint is written; else ``best.pt`` alone would refuse the same command."""
    poison(monkeypatch, set(range(1, 100)))
    more = ("train.max_bad_steps=100", "train.epochs=2")
    run = build(videos, tmp_path / "run", *more)
    ends = run.steps_per_epoch
    after_each_step(run, lambda number: number == ends and signal.raise_signal(signal.SIGTERM))
    with pytest.raises(StoppedError, match="the last checkpoint is of step"):
        loop.train(run)
    assert (tmp_path / "run/best.pt").is_file()
    train(videos, tmp_path / "run", *more)


def test_loss_that_diverges_ends_the_run_with_advice(videos: Path, tmp_path: Path) -> None:
    more = ("optim.lr=1e30", "train.clip_grad_norm=null", "train.max_bad_steps=3")
    message = r"loss is not finite at step 4.*lower optim\.lr \(.*\), set train\.clip_grad_norm"
    message += r"\. Checkpoints, if there are any, precede"  # here there is none
    with pytest.raises(FloatingPointError, match=message):
        train(videos, tmp_path / "run", *more)


def test_logits_that_are_not_finite_in_a_validation(videos: Path, tmp_path: Path) -> None:
    """The message names the learning rate, and not the weights alone."""
    run = build(videos, tmp_path / "run")
    next(run.train_step.model.parameters()).data[:] = torch.nan
    message = r"are NaN or infinite.* learning rate that is too high\. .*lower optim\.lr \(0\.01\)"
    with pytest.raises(FloatingPointError, match=message):
        run.validator.evaluate()


def test_counts_are_restored(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, {2, 3})
    folder = train(videos, tmp_path / "run", "train.epochs=1")
    again = build(videos, folder, "train.epochs=1")
    loop.train(again)
    assert (again.train_step.bad_steps, again.train_step.consecutive_bad_steps) == (2, 2)


def test_weights_that_are_not_finite_are_never_saved(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run", "train.save_steps=1")

    def ruin(number: int) -> None:
        if number == 2:
            next(run.train_step.model.parameters()).data[0] = torch.nan

    after_each_step(run, ruin)
    message = r"not finite at step 3 \(.*are not saved, and earlier checkpoints stay"
    with pytest.raises(FloatingPointError, match=message):
        loop.train(run)

    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 2
    assert not not_finite(last["model"])


def test_average_that_is_not_finite_is_not_saved(videos: Path, tmp_path: Path) -> None:
    more = ("train.ema_decay=0.9", "train.save_steps=1", "train.epochs=1")
    run = build(videos, tmp_path / "run", *more)
    network = run.train_step.network

    def ruin(number: int) -> None:
        if number == 2:
            next(b for n, b in network.named_buffers() if "running_var" in n)[0] = torch.inf

    after_each_step(run, ruin)
    with pytest.raises(FloatingPointError, match=r"not finite at step 3 \(.*running_var"):
        loop.train(run)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == 2


@pytest.mark.slow
def test_overflow_under_the_loss_scale_of_fp16_is_not_a_bad_step(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.amp.GradScaler
    monkeypatch.setattr(
        torch.amp, "GradScaler", lambda device, enabled: real(device, 2.0**60, enabled=enabled)
    )
    more = ("train.precision=fp16", "train.max_bad_steps=1", "train.batch_size=1")
    run = build(videos, tmp_path / "run", *more, "train.epochs=2")
    loop.train(run)

    assert run.train_step.bad_steps == 0
    assert run.train_step.scaler.get_scale() < 2.0**60
    assert all(e["bad_steps"] == 0 for e in read_log(tmp_path / "run"))


def test_bad_steps_of_every_interval_are_logged(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals of three steps over epochs of four."""
    poison(monkeypatch, {3, 6})
    folder = train(videos, tmp_path / "run", "log.interval=3")
    assert [(e["step"], e["bad_steps"]) for e in read_log(folder)] == [(3, 0), (6, 1)]
    folder = train(videos, tmp_path / "other", "log.interval=4")
    assert sum(e["bad_steps"] for e in read_log(folder)) == 0  # the counter of batches continues


# --- the list of bad batches --------------------------------------------------------------------


def test_repeated_steps_are_listed_once(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        poison(patch, {1, 2})
        run = build(videos, tmp_path / "run", "train.save_steps=2")
        folder = run.checkpointer.folder
        save = folder.save

        def killed(content: dict[str, Any], step: int) -> Any:
            if step == 4:
                raise Killed
            return save(content, step)

        folder.save = killed
        with pytest.raises(Killed):
            loop.train(run)  # the checkpoint is of step 2
    with monkeypatch.context() as patch:
        poison(patch, {0})  # step 3 again
        train(videos, tmp_path / "run", "train.save_steps=2")

    lines = (tmp_path / "run" / LISTED).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]


def test_list_of_bad_batches(tmp_path: Path) -> None:
    path = tmp_path / LISTED
    listed = BadBatches(path, ["a.mp4", "b.mp4", "c.mp4"], CPU)
    listed.truncate(0)  # there is no file yet
    listed.append(3, [torch.nan, 0.5], [2, 0])
    listed.append(7, [torch.inf], [1])
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line) for line in lines] == [
        {"step": 3, "ranks": [{"loss": ["nan", "0.5"], "videos": ["c.mp4", "a.mp4"]}]},
        {"step": 7, "ranks": [{"loss": ["inf"], "videos": ["b.mp4"]}]},
    ]

    with path.open("a") as file:
        file.write('\0\0\0\n\n{"step": 1, "ra')  # of a power failure, and of a killed run
    damaged = path.read_bytes()
    listed.truncate(7)
    assert path.read_text() == "".join(lines)
    assert path.with_name(f"{LISTED}.damaged").read_bytes() == damaged
    listed.truncate(6)
    assert path.read_text() == lines[0]


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
        own = {**engine_toys.batch((2,)), "skipped": [], "index": torch.arange(4)}
        own["clips"][2][0] = value
        step.step([own], number=number, lr=0.1)
        return model.mean.clone()

    one, two = run(0, 1.0), run(1, 2.0)
    assert not torch.equal(one, two)
    assert torch.equal(run(2, torch.nan), two)
    assert step.bad_steps == 1


def test_tensors_that_are_not_finite_are_named() -> None:
    state = {
        "good": torch.tensor([1e38, -1e38]),
        "half": torch.tensor([6e4], dtype=torch.float16).repeat(9),
        "counter": torch.tensor(3),
        "nan": torch.tensor([0.0, torch.nan]),
        "inf": torch.tensor([-torch.inf]),
        "none": torch.zeros(0),
    }
    assert not_finite(state) == ["nan", "inf"]
    assert not_finite({}) == []
