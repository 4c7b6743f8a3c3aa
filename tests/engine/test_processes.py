"""Training in separate processes: two under torchrun, SIGKILL, and their output."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from engine_toys import (
    finish,
    launch,
    read_log,
    same_weights,
    train,
    wait_for_step,
    weights,
)

from ffn.engine.checkpoints import load_checkpoint


def losses(folder: Path) -> list[dict[str, float]]:
    return [
        {key: value for key, value in entry.items() if key.startswith(("loss", "top1", "grad"))}
        for entry in read_log(folder)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_two_processes_train_as_one(videos: Path, start: str, tmp_path: Path, views: str) -> None:
    # A large step lets the loss rise to 20, which amplifies rounding.
    options = ("train.freeze_bn=true", "model.dropout=0", "optim.lr=1e-4")
    more = (start, f"train.views={views}", *options)
    process = launch(videos, tmp_path / "two", *more, processes=2)
    one = train(videos, tmp_path / "one", *more)

    out, err = finish(process)

    found, expected = losses(tmp_path / "two"), losses(one)
    assert len(found) == len(expected) == 8
    for step, (two, single) in enumerate(zip(found, expected, strict=True)):
        # A feature that rounding moves across the zero of a ReLU changes a gradient by about 1e-4.
        assert two == pytest.approx(single, rel=1e-5 if step < 3 else 3e-3, abs=1e-9)
    assert max(single["loss/kl_2"] for single in expected) > 0.1  # not negligible
    for key, value in weights(tmp_path / "two").items():
        torch.testing.assert_close(value, weights(one)[key], rtol=1e-4, atol=1e-5)
    # Each of the 9 validation videos counts once, on one of the processes.
    validations = [read_log(folder, "val") for folder in (tmp_path / "two", one)]
    for two, single in zip(*validations, strict=True):
        assert {k: v for k, v in two.items() if "top1" in k} == pytest.approx(
            {k: v for k, v in single.items() if "top1" in k}
        )

    # Only rank 0 prints.
    lines = [line for line in out.splitlines() if line and not line.startswith("[Gloo]")]
    assert len([line for line in lines if re.search(r"step \d+ ", line)]) == 8
    assert len(lines) == len(set(lines))
    assert not [line for line in err.splitlines() if "ffn" in line or "videos" in line]


SMALL_STEPS = ("train.batch_size=2", "train.save_steps=1")  # 12 steps per epoch


@pytest.mark.slow
def test_killed_run_continues_to_the_same_weights(videos: Path, tmp_path: Path) -> None:
    process = launch(videos, tmp_path / "run", *SMALL_STEPS)
    whole = train(videos, tmp_path / "whole", *SMALL_STEPS)

    wait_for_step(tmp_path / "run", 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stopped_at = load_checkpoint(tmp_path / "run/last.pt")["training"]["step"]
    assert 4 <= stopped_at < 24
    with (tmp_path / "run/log.jsonl").open("a") as log:
        # As after a kill in the middle of writing a later line.
        log.write('{"step": 24, "train/loss": 1}\n{"step": 24, "tra')

    train(videos, tmp_path / "run", *SMALL_STEPS)
    assert same_weights(tmp_path / "run", whole)
    assert [e["step"] for e in read_log(tmp_path / "run")] == [e["step"] for e in read_log(whole)]
    assert not list((tmp_path / "run").glob(".*.part.*"))


@pytest.mark.slow
def test_two_killed_processes_continue_to_the_same_weights(videos: Path, tmp_path: Path) -> None:
    finish(launch(videos, tmp_path / "whole", *SMALL_STEPS, processes=2))
    process = launch(videos, tmp_path / "run", *SMALL_STEPS, processes=2)
    wait_for_step(tmp_path / "run", 5, process)
    for rank in children(process.pid):
        os.kill(rank, signal.SIGKILL)
    process.communicate()
    assert 4 <= load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] < 24

    finish(launch(videos, tmp_path / "run", *SMALL_STEPS, processes=2))

    assert same_weights(tmp_path / "run", tmp_path / "whole")


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.slow
def test_offline_wandb_writes_into_the_run(videos: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    out, _ = finish(launch(videos, tmp_path / "run", "log.wandb=offline"))

    runs = list((tmp_path / "run/wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 1
    assert runs[0].stat().st_size > 1000
    assert b"loss/ce_4" in runs[0].read_bytes()
    assert "best network" in out
