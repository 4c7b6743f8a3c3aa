"""Numbers that are not finite stay out of weights, statistics and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import read_log, train, weights
from ffn.engine.guards import LISTED, StepGuard, not_finite
from torch import nn

from ffn.engine import step
from ffn.engine.checkpoint import load_checkpoint
from ffn.engine.distributed import World
from ffn.engine.loop import Trainer


def poison(monkeypatch: pytest.MonkeyPatch, steps: set[int], value: float = torch.nan) -> None:
    """Make a pixel of the clips of some training batches, counted from 0, not a number."""
    to_device, made = step.to_device, iter(range(10**6))

    def poisoned(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        if next(made) in steps:
            for clip in batch["clips"].values():
                clip[0, 0, 0, 0, 0] = value
        return batch

    monkeypatch.setattr(step, "to_device", poisoned)


def states(trainer: Trainer, steps: dict[int, dict[str, torch.Tensor]]) -> None:
    """Note the network before each optimiser update of a run."""
    update = run.train_step.update

    def watch(*args: Any, **place: Any) -> Any:
        steps[trainer.step] = {k: v.clone() for k, v in kept(trainer).items()}
        verdict = update(*args, **place)
        steps[trainer.step + 0.5] = {k: v.clone() for k, v in kept(trainer).items()}
        return verdict

    run.train_step.update = watch


def kept(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(run.train_step.model.state_dict())


@pytest.mark.parametrize("views", ["together", "sequential"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_ten_bad_steps_leave_no_trace(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, views: str
) -> None:
    bad = {1, 2, 5, 8, 11, 12, 13, 17, 20, 22}
    poison(monkeypatch, bad, value)
    more = ("train.batch_size=2", "train.save_steps=1", "train.max_bad_steps=4")
    run = build(videos, tmp_path / "run", *more, f"train.views={views}")
    seen: dict[float, dict[str, torch.Tensor]] = {}
    states(trainer, seen)

    loop.train(run)

    before = seen[0]  # after the forward pass of the first step: statistics have moved already
    for done in range(24):
        after = seen[done + 0.5]
        assert not not_finite(after)
        same = all(torch.equal(after[key], before[key]) for key in after)
        assert same == (done in bad), done
        before = after
    lines = [json.loads(line) for line in (tmp_path / "run" / LISTED).read_text().splitlines()]
    assert [line["step"] for line in lines] == [done + 1 for done in sorted(bad)]
    for line in lines:
        (own,) = line["ranks"]
        assert len(own["videos"]) == 2
        assert all(Path(path).is_file() for path in own["videos"])
        assert own["loss"] in (["nan"], ["inf"], ["-inf"])
    entries = read_log(tmp_path / "run")
    assert [e["step"] - 1 for e in entries if e["bad_steps"]] == sorted(bad)
    assert all(("loss" in e) == (not e["bad_steps"]) for e in entries)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["guard"]["total"] == 10


def test_bad_step_is_as_if_it_had_not_been(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps around it compute what they would with an optimiser that never saw it."""
    poison(monkeypatch, {1})
    more = ("train.epochs=1", "model.dropout=0")
    one = build(videos, tmp_path / "one", *more)
    one.run()

    other = build(videos, tmp_path / "other", *more)
    other.stepper.task.train()
    batches = list(other.train_loader)
    optimiser = torch.optim.SGD(other.stepper.optimiser.param_groups, momentum=0.9)
    for batch in (batches[0], *batches[2:]):
        clips = {t: other.normalise(clip) for t, clip in batch["clips"].items()}
        optimiser.zero_grad()
        other.stepper.task({"clips": clips, "label": batch["label"]})["loss"].backward()
        nn.utils.clip_grad_norm_(other.model.parameters(), 20.0)
        for group in optimiser.param_groups:
            group["lr"] = 0.01 * group["lr_scale"]
        optimiser.step()

    expected = other.model.state_dict()
    for key, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)


def test_too_many_in_a_row_end_the_run_and_name_the_videos(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("train.save_steps=1", "train.max_bad_steps=3")
    with monkeypatch.context() as patch:
        poison(patch, set(range(3, 100)))
        with pytest.raises(FloatingPointError, match=rf"for 3 steps; .*{LISTED} names.*optim\.lr"):
            train(videos, tmp_path / "run", *more)

    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 4  # one bad step may be an accident, two are not
    assert not not_finite(last["model"])
    whole = train(videos, tmp_path / "whole", *more)
    assert len(read_log(train(videos, tmp_path / "run", *more))) == len(read_log(whole))


def test_counts_survive_an_interruption(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, {2, 3})
    folder = train(videos, tmp_path / "run", "train.epochs=1")
    again = build(videos, folder, "train.epochs=1")
    again.run()
    assert (again.stepper.guard.total, again.stepper.guard.in_a_row) == (2, 2)


def test_weights_that_are_not_finite_are_never_saved(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run", "train.save_steps=1")
    update = run.train_step.update

    def ruin(*args: Any, **place: Any) -> Any:
        verdict = update(*args, **place)
        if trainer.step == 2:
            next(run.train_step.model.parameters()).data[0] = torch.nan
        return verdict

    run.train_step.update = ruin
    with pytest.raises(FloatingPointError, match=r"not finite at step 3 \(.*are not saved"):
        loop.train(run)

    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 2
    assert not not_finite(last["model"])


def test_scaler_of_fp16_is_left_to_its_work(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that run over at a large scale are no fault of the run."""
    monkeypatch.setattr(
        torch.amp, "GradScaler", lambda device, enabled: real(device, 2.0**60, enabled=enabled)
    )
    more = ("train.precision=fp16", "train.max_bad_steps=1", "train.batch_size=1")
    run = build(videos, tmp_path / "run", *more, "train.epochs=2")
    loop.train(run)

    assert run.train_step.guard.total == 0
    assert run.train_step.scaler.get_scale() < 2.0**60
    assert all(e["bad_steps"] == 0 for e in read_log(tmp_path / "run"))


real = torch.amp.GradScaler


def test_names_what_is_not_finite() -> None:
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


def test_statistics_of_every_type_return(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    guard = StepGuard(model, tmp_path, limit=2)
    model(torch.randn(5, 3))
    expected = {key: value.clone() for key, value in model.state_dict().items()}

    guard.remember()
    model(torch.full((5, 3), torch.nan))
    assert not_finite(model.state_dict())
    guard.undo()
    said = guard.reject(7, [float("nan")], ["a.mp4"], World(0, 1, torch.device("cpu")))

    assert "loss is not finite around step 7: left out (1 in a row, 1 in all)" in said
    assert all(torch.equal(v, expected[k]) for k, v in model.state_dict().items())


def test_average_that_is_not_finite_is_not_saved(videos: Path, tmp_path: Path) -> None:
    more = ("train.ema_decay=0.9", "train.save_steps=1", "train.epochs=1")
    run = build(videos, tmp_path / "run", *more)
    update = run.train_step.update

    def ruin(*args: Any, **place: Any) -> Any:
        verdict = update(*args, **place)
        if trainer.step == 2:
            next(b for n, b in run.train_step.network.named_buffers() if "running_var" in n)[0] = (
                torch.inf
            )
        return verdict

    run.train_step.update = ruin
    with pytest.raises(FloatingPointError, match=r"not finite at step 3 \(.*running_var"):
        loop.train(run)
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == 2


def test_bad_steps_of_every_interval_are_logged(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals of three steps over epochs of four."""
    poison(monkeypatch, {3, 6})
    folder = train(videos, tmp_path / "run", "log.interval=3")
    assert [(e["step"], e["bad_steps"]) for e in read_log(folder)] == [(3, 0), (6, 1)]
    folder = train(videos, tmp_path / "other", "log.interval=4")
    assert sum(e["bad_steps"] for e in read_log(folder)) == 0  # the batches are counted on


def test_names_of_steps_that_come_again_stand_once(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        poison(patch, {1, 2})
        run = build(videos, tmp_path / "run", "train.save_steps=2")
        save = trainer.checkpoints.save

        def die(content: dict[str, Any], step: int) -> Any:
            if step == 4:
                raise KeyboardInterrupt
            return save(content, step)

        trainer.checkpoints.save = die
        with pytest.raises(KeyboardInterrupt):
            loop.train(run)  # the checkpoint is of step 2
    with monkeypatch.context() as patch:
        poison(patch, {0})  # step 3 again
        train(videos, tmp_path / "run", "train.save_steps=2")

    lines = (tmp_path / "run" / LISTED).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
