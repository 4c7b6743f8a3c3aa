"""Console messages of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffn.engine.logs import console

SCHEDULE = {
    "epochs": 50,
    "steps_per_epoch": 100,
    "batch_size": 32,
    "repeated_aug": 1,
    "processes": 2,
    "grad_accum_steps": 2,
    "lr": 0.01,
    "base": None,
    "precision": "bf16",
    "device": "cuda",
}


def test_schedule() -> None:
    assert console.schedule(**SCHEDULE) == (
        "50 epochs of 100 steps; 32 videos per step = 2 process(es) x 2 micro-batch(es) x 8; "
        "learning rate 0.01, bf16 on cuda"
    )
    repeated = console.schedule(**SCHEDULE | {"repeated_aug": 2, "base": (0.02, 64)})
    assert "16 videos x 2 samples per step" in repeated
    assert "learning rate 0.01 (0.02 for 64)" in repeated


def test_frame_counts() -> None:
    views = {16: {12: 0.25, 20: 0.75}, 4: {4: 1.0}, 8: {6: 0.5, 7: 0.5}}
    assert console.frame_counts(views) == (
        "frames drawn for each step from 4, 6-7, 12-20: 28.5 per video on average"
    )


def test_new_run() -> None:
    counts = {"train_videos": 24, "val_videos": 9, "classes": 3}
    assert console.new_run("tsm_r50", "plain", **counts) == [
        "tsm_r50, task plain: 24 training and 9 validation videos, 3 classes"
    ]
    assert console.new_run("tsm_r50", "flexible", **counts, report="a report")[1:] == ["a report"]


@pytest.mark.parametrize(
    ("step", "shown"),
    [(8, "resumed after 2 of 5 epochs"), (10, "resumed after 2 of 5 epochs and 2 step(s)")],
)
def test_resumed(step: int, shown: str) -> None:
    position = {"step": step, "steps_per_epoch": 4, "epochs": 5}
    lines = console.resumed(Path("runs/a"), **position, writers=2, processes=2)
    assert lines == [f"runs/a: {shown}"]
    (_, more) = console.resumed(Path("runs/a"), **position, writers=2, processes=1)
    assert "written by 2 process(es), now there are 1: running statistics are averaged" in more


@pytest.mark.parametrize(
    ("saved", "shown"),
    [
        (7, "stopped and saved at step 7"),
        (5, "stopped at step 7 after non-finite steps: the last checkpoint is of step 5"),
    ],
)
def test_stopped(saved: int, shown: str) -> None:
    assert console.stopped(7, saved) == shown


def test_interval() -> None:
    values = {"loss": 1.25, "loss/ce_4": 1.0, "top1/4": 50.0, "bad_steps": 0, "lr": 0.01}
    values |= {"grad_norm": 2.5, "videos_per_s": 40.2, "data_wait": 0.123, "memory_mib": 9.0}
    line = (
        "epoch   1.50  step 12  lr 1.00e-02  loss 1.250  loss/ce_4 1.000  top1/4 50.000  "
        "grad 2.50  40 videos/s, data wait 12%"
    )
    assert console.interval(1.5, 12, values, 0) == line
    assert console.interval(1.5, 12, values, 4000) == f"{line}, 1 h 6 min left"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "60 min"),
        (3600, "1 h 0 min"),
        (47.9 * 3600, "47 h 54 min"),
        (48 * 3600, "2 d 0 h"),
        (100 * 3600, "4 d 4 h"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert console.duration(seconds) == shown


def test_validation() -> None:
    metrics = {2: {"top1": 25.0, "failed": 0}, 4: {"top1": 50.0, "failed": 0}}
    line = console.validation(3, metrics, 37.5, 12)
    assert line == "epoch   3 validation top-1 %: 2f 25.0  4f 50.0  mean 37.50"

    for failed, mean in ((4, "56.25"), (12, "none")):
        unreadable = {t: {**values, "failed": failed} for t, values in metrics.items()}
        assert console.validation(3, unreadable, 37.5, 12).endswith(
            f"({failed} unreadable videos count as wrong; mean without them {mean})"
        )


def test_unreadable_lists_ten_and_names_the_file() -> None:
    reasons = [f"video_{number:02}.mp4: damaged" for number in range(12)]
    first, *others = console.unreadable("epoch 3: 24", reasons, Path("run/u.txt")).splitlines()
    assert first == "epoch 3: 24"
    assert others[:-1] == [f"  video_{number:02}.mp4: damaged" for number in range(10)]
    assert others[-1] == "  ... and 2 more, see run/u.txt"


def test_finished() -> None:
    line = console.finished(Path("runs/a"), 50, 50)
    assert line.startswith("runs/a: finished, 50 of 50 epochs are done. ")
    assert line.endswith("model.weights=runs/a/best.pt")
    assert "raise train.patience" not in line
    assert "7 of 50 epochs are done. To train further, raise train.patience, or" in (
        console.finished(Path("runs/a"), 7, 50)
    )
