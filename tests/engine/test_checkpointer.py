"""Which runs can be resumed, and what a checkpoint holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine_toys import CPU, STEPS, build, config, same_weights, train, train_until
from torch import nn

from ffn.engine import loop
from ffn.engine.checkpointer import gather_buffers, load_buffers
from ffn.engine.checkpoints import CheckpointError, RunError, load_checkpoint
from ffn.engine.distributed import World

SAVE = "train.save_steps=1"


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_trains_nothing_unless_it_gets_longer(
    videos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    train(videos, run, "log.interval=7", "data.workers=1")
    assert same_weights(run, finished)
    assert len(capsys.readouterr().out.strip().splitlines()) == 1

    more = (f"log.output={run}", "train.epochs=3", "data.workers=1")
    train(videos, run, *more)
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved == config(videos, run, *more).model_dump()
    assert load_checkpoint(run / "last.pt")["training"]["epoch"] == 3


def test_other_options_are_refused(videos: Path, finished: Path) -> None:
    before = content_of(finished)
    for override in ("train.epochs=1", "optim.lr=0.5", "task.frames=[2,3]"):
        with pytest.raises(RunError, match=override.partition("=")[0]):
            train(videos, finished, override)
    assert content_of(finished) == before


def test_nothing_of_the_user_is_overwritten(videos: Path, finished: Path, tmp_path: Path) -> None:
    """A config of the user; a best network without checkpoints; damaged checkpoints."""
    own, best, damaged = (tmp_path / name for name in ("own", "best", "damaged"))
    own.mkdir()
    (own / "config.yaml").write_text("# mine\ntrain: {epochs: 2}\n")
    for folder in (best, damaged):
        shutil.copytree(finished, folder)
    shutil.rmtree(best / "checkpoints")
    (best / "last.pt").unlink()
    for path in [*(damaged / "checkpoints").iterdir(), damaged / "last.pt"]:
        path.write_bytes(b"damaged")
    for folder, kind in ((own, RunError), (best, RunError), (damaged, CheckpointError)):
        before = content_of(folder)
        with pytest.raises(kind, match=str(folder)):
            train(videos, folder)
        assert {**before, ".lock": b""} == {**content_of(folder), ".lock": b""}


def test_other_videos_are_refused_and_the_first_is_named(videos: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(videos, tmp_path / "videos"))
    train_until(3, root, tmp_path / "run", SAVE)
    moved = Path(shutil.move(root, tmp_path / "moved"))
    train_until(4, moved, tmp_path / "run", SAVE)

    listed, whole = moved / "train.csv", (moved / "train.csv").read_text()
    for changed in ("train_7.mp4,left\n", ""):
        listed.write_text(whole.replace("train_7.mp4,right\n", changed))
        with pytest.raises(RunError, match=r"'train,train_7\.mp4,1,,,' -> 'train,train_[78]\.mp4"):
            train(moved, tmp_path / "run", SAVE)


def test_metrics_in_a_checkpoint_are_those_of_its_weights(videos: Path, tmp_path: Path) -> None:
    train(videos, tmp_path / "run", SAVE, "train.keep_checkpoints=9")
    for number in range(1, 2 * STEPS + 1):
        path = tmp_path / f"run/checkpoints/step_{number:08d}.pt"
        assert bool(load_checkpoint(path)["meta"]["metrics"]) == (number % STEPS == 0)


def test_weights_that_are_not_finite_are_never_saved(videos: Path, tmp_path: Path) -> None:
    """A buffer with infinities from the start, as a mask of an attention, is no fault."""
    run = build(videos, tmp_path / "run", SAVE)
    run.train_step.model.model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    step = run.train_step.step

    def ruin(batches: Any, *, number: int, **more: Any) -> Any:
        result = step(batches, number=number, **more)
        if number == 2:
            next(run.train_step.model.parameters()).data[0] = torch.nan
        return result

    run.train_step.step = ruin
    with pytest.raises(FloatingPointError, match="not finite at step 3"):
        loop.train(run)
    last = load_checkpoint(tmp_path / "run/last.pt")
    assert last["training"]["step"] == 2
    assert [key for key, one in last["model"].items() if not one.isfinite().all()] == ["mask"]


def test_buffers_of_another_number_of_processes_are_averaged() -> None:
    norm = nn.BatchNorm1d(2)
    (own,) = gather_buffers(norm)
    other = [own[0] + 4, own[1] + 2, torch.tensor(7)]

    load_buffers(norm, [own, other], World(1, 2, torch.device("cpu")))
    assert norm.running_mean.tolist() == [4, 4]
    assert int(norm.num_batches_tracked) == 7

    load_buffers(norm, [own, other], CPU)
    assert norm.running_mean.tolist() == [2, 2]
    assert norm.running_var.tolist() == [2, 2]
    assert int(norm.num_batches_tracked) == 0  # of the first process
