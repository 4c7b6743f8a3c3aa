"""Runs with non-finite numbers or unreadable videos: weights do not change in such steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import build, read_log, state_of, train, write_videos

from ffn.data import VideoError
from ffn.engine import loop, train_step
from ffn.engine.checkpoints import load_checkpoint


def test_bad_steps_are_logged_and_their_count_is_restored(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches with NaN in one pixel of their clips, counted from 0."""
    bad, to_device, counter = {1, 2, 5, 7}, train_step.to_device, iter(range(8))

    def poisoned(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        if next(counter) in bad:
            for clip in batch["clips"].values():
                clip[0, 0, 0, 0, 0] = torch.nan
        return batch

    monkeypatch.setattr(train_step, "to_device", poisoned)
    train(videos, tmp_path / "run")

    entries = read_log(tmp_path / "run")
    assert [e["step"] - 1 for e in entries if e["bad_steps"]] == sorted(bad)
    assert all(("loss" in e) == (not e["bad_steps"]) for e in entries)
    training = load_checkpoint(tmp_path / "run/last.pt")["training"]
    assert (training["bad_steps"], training["bad_steps_in_a_row"]) == (4, 1)
    again = build(videos, tmp_path / "run")
    again.checkpointer.restore()
    assert (again.train_step.bad_steps, again.train_step.bad_steps_in_a_row) == (4, 1)


def test_logits_that_are_not_finite_in_a_validation(videos: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run")
    next(run.train_step.model.parameters()).data[:] = torch.nan
    with pytest.raises(FloatingPointError, match=r"ower optim\.lr"):
        loop.evaluate(run)


def test_a_broken_video_alone_in_its_batch(tmp_path: Path) -> None:
    """Its step is skipped; too many such steps end the run; without on_error, the first does."""
    single = ("train.batch_size=1", "data.on_error=skip")
    (tmp_path / "broken").mkdir()
    broken = write_videos(tmp_path / "broken", train=6, val=3)
    (broken / "train_3.mp4").write_bytes(b"no video")
    run = build(broken, tmp_path / "run", *single)
    run.train_loader.sampler.set_epoch(0)
    order = [key[1] for key in run.train_loader.sampler]
    batches, seen = iter(run.train_loader), []
    for number in range(6):
        run.train_step.step(batches, number=number, lr=0.01)
        seen.append(state_of(run.train_step.model))
    for number in range(1, 6):
        same = all(torch.equal(v, seen[number - 1][k]) for k, v in seen[number].items())
        assert same == (order[number] == 3), number

    with pytest.raises(VideoError, match=r"train_3\.mp4"):
        train(broken, tmp_path / "fails", *single, "data.on_error=fail")
    for number in range(6):
        (broken / f"train_{number}.mp4").write_bytes(b"no video")
    with pytest.raises(VideoError, match=r"no readable video in step 10"):
        train(broken, tmp_path / "none", *single)
