"""Run folders: which runs can be resumed, what a checkpoint holds, folders of version 0.1."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine_toys import (
    CPU,
    STEPS,
    build,
    config,
    flexible_task,
    read_log,
    same_weights,
    train,
    train_until,
    weights,
)
from torch import nn

import ffn
from ffn.data import Normalize, Preprocessing, Record, Splits
from ffn.engine.checkpoints.checkpointer import (
    Checkpointer,
    RunState,
    gather_buffers,
    infinite_buffers,
    load_buffers,
)
from ffn.engine.checkpoints.file import load_checkpoint, save_checkpoint
from ffn.engine.checkpoints.folder import RunFolder
from ffn.engine.checkpoints.lock import RunError
from ffn.engine.config import RENAMED, config_from_dict, config_to_dict
from ffn.engine.distributed import World
from ffn.engine.logs.meter import Meter
from ffn.engine.mixup import BatchMix
from ffn.engine.run_videos import RunVideos
from ffn.engine.train_step import TrainStep

SAVE = "train.save_steps=1"


def folder_content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of each file; filelock 4.1 writes to the lock when it is taken."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# --- folders that exist -------------------------------------------------------------------------


def test_finished_run_prints_a_message_and_changes_nothing(
    videos: Path, finished: Path, capsys: pytest.CaptureFixture
) -> None:
    before = folder_content(finished)

    may_change = ("log.interval=7", "data.workers=1", "data.store=other")
    train(videos, finished, *may_change)

    assert folder_content(finished) == before
    shown = capsys.readouterr().out
    assert (
        "finished, 2 of 2 epochs are done. To train further, raise train.epochs, or choose another"
        in shown
    )
    assert len(shown.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("train.epochs=1", "train.epochs 2 -> 1"),
        ("optim.lr=0.5", "optim.lr 0.01 -> 0.5"),
        ("task.frames=[2,3]", r"task.frames \[2, 4\] -> \[2, 3\]"),
        ("task.small_views=label", "task.small_views distill -> label"),
    ],
)
def test_folder_of_a_run_with_other_options(
    videos: Path, finished: Path, override: str, shown: str
) -> None:
    before = folder_content(finished)

    with pytest.raises(RunError, match=f"{shown}.*another log.output"):
        train(videos, finished, override)

    assert folder_content(finished) == before


def test_folder_of_a_run_with_another_task(videos: Path, finished: Path, tmp_path: Path) -> None:
    train(videos, tmp_path / "run", "task.name=plain", "task.frames=[4]", "train.epochs=1")

    with pytest.raises(RunError, match=r"task\.distill_weight None -> 1\.0; task\.draws"):
        train(videos, tmp_path / "run", "train.epochs=1")


def test_folder_with_steps_of_a_run_without_a_checkpoint(videos: Path, tmp_path: Path) -> None:
    """Its config and log show that it belongs to another run."""
    train_until(2, videos, tmp_path / "run")
    assert not (tmp_path / "run/last.pt").exists()

    with pytest.raises(RunError, match=r"config\.yaml belongs to .* \(optim\.lr 0\.01 -> 0\.5\)"):
        train(videos, tmp_path / "run", "optim.lr=0.5")
    train_until(2, videos, tmp_path / "run")  # the same options


def test_a_config_of_the_user_in_a_new_folder_stays(videos: Path, tmp_path: Path) -> None:
    """The config that a run is started with may lie in the folder that it names as its output."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("# mine\ntrain: {epochs: 2}\n")
    before = folder_content(run)

    with pytest.raises(
        RunError, match=r"config\.yaml is not of a run of ffn; .*another log\.output"
    ):
        train(videos, run)

    after = folder_content(run)
    assert after == before


@pytest.mark.parametrize("kept", ["config.yaml", "videos.csv.gz"])
def test_an_interrupted_start_continues(videos: Path, tmp_path: Path, kept: str) -> None:
    """With its config alone, or with its videos and another config, e.g. a smaller batch."""
    train_until(0, videos, tmp_path / "run")
    (tmp_path / "run/log.jsonl").unlink()
    more = []
    if kept == "config.yaml":
        (tmp_path / "run/videos.csv.gz").unlink()
    else:
        more = ["train.batch_size=3"]
    train_until(0, videos, tmp_path / "run", *more)
    assert (tmp_path / "run/videos.csv.gz").exists()


def test_options_of_a_longer_run(videos: Path, finished: Path, tmp_path: Path) -> None:
    """A run that goes on with other options writes them into its config."""
    shutil.copytree(finished, tmp_path / "run")
    more = (f"log.output={tmp_path / 'run'}", "train.epochs=3", "data.workers=1")
    train(videos, tmp_path / "run", *more)

    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert saved == config_to_dict(config(videos, tmp_path / "run", *more))
    assert not list((tmp_path / "run").glob("*.damaged"))


def test_folder_of_a_run_on_other_videos(videos: Path, finished: Path, tmp_path: Path) -> None:
    moved = load_checkpoint(finished / "last.pt")
    moved["meta"]["data"] = moved["meta"]["data"] | {"train_videos": 23}
    save_checkpoint(tmp_path / "run" / "last.pt", moved)

    with pytest.raises(RunError, match="other videos or labels"):
        train(videos, tmp_path / "run")


def test_folder_whose_checkpoints_are_all_damaged_stays(videos: Path, tmp_path: Path) -> None:
    train_until(3, videos, tmp_path / "run", SAVE)
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:1000])
    before = folder_content(tmp_path / "run")

    message = r"(?s)2 checkpoint\(s\) and none can be used.*another log"
    with pytest.raises(ValueError, match=message):
        train(videos, tmp_path / "run", SAVE)

    after = folder_content(tmp_path / "run")
    assert {name: after[name] for name in before} == before


def test_best_network_without_a_checkpoint_is_not_overwritten(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    (tmp_path / "run/last.pt").unlink()
    before = folder_content(tmp_path / "run")

    message = r"best\.pt of a run and no checkpoint.*would overwrite it"
    with pytest.raises(RunError, match=message):
        train(videos, tmp_path / "run")

    after = folder_content(tmp_path / "run")
    assert {name: after[name] for name in before} == before


def test_metrics_in_a_checkpoint_are_those_of_its_weights(videos: Path, tmp_path: Path) -> None:
    train(videos, tmp_path / "run", SAVE, "train.keep_checkpoints=9")

    for number in range(1, 2 * STEPS + 1):
        path = tmp_path / f"run/checkpoints/step_{number:08d}.pt"
        assert bool(load_checkpoint(path)["meta"]["metrics"]) == (number % STEPS == 0)


# --- runs of older versions ---------------------------------------------------------------------


def test_run_without_newer_options_is_resumed(videos: Path, finished: Path, tmp_path: Path) -> None:
    """They have the defaults, which keep the previous behaviour."""
    train_until(3, videos, tmp_path / "run", SAVE)
    last = load_checkpoint(tmp_path / "run/last.pt")
    for section, option in (("data", "crop_mode"), ("train", "mixup"), ("train", "repeated_aug")):
        del last["meta"]["config"][section][option]
    save_checkpoint(tmp_path / "run/last.pt", last)

    with pytest.raises(RunError, match=r"train\.mixup 0\.0 -> 0\.5"):
        train(videos, tmp_path / "run", SAVE, "train.mixup=0.5")
    train(videos, tmp_path / "run", SAVE)

    assert same_weights(tmp_path / "run", finished)


def as_version_0_1(values: dict[str, Any]) -> dict[str, Any]:
    """A config as version 0.1 wrote it: old names, no imports, the options of all tasks."""
    old = copy.deepcopy(values)
    del old["imports"]
    for before, now in RENAMED.items():
        section, name = now.split(".")
        old[section][before.split(".")[1]] = old[section].pop(name)
    flexible = {
        "private": "norms",
        "alteration": True,
        "small_views": "distill",
        "distill_weight": 1.0,
    }
    return {**old, "task": {**flexible, **old["task"]}}


def make_version_0_1(folder: Path) -> None:
    """Rewrite the checkpoints and the config of a run as version 0.1 wrote them."""
    for path in [*(folder / "checkpoints").iterdir(), *folder.glob("best.pt")]:
        content = load_checkpoint(path)
        del content["meta"]["imports"]
        content["meta"]["config"] = as_version_0_1(content["meta"]["config"])
        save_checkpoint(path, content)
    shutil.copy(max((folder / "checkpoints").iterdir()), folder / "last.pt")
    description = folder / "config.yaml"
    old = as_version_0_1(yaml.safe_load(description.read_text()))
    description.write_text(yaml.safe_dump(old, sort_keys=False))
    assert "accumulate" in old["train"]
    assert "reader" in old["data"]


TASKS = {"flexible": (), "plain": ("task.name=plain", "task.frames=[4]")}


@pytest.mark.parametrize("task", TASKS)
def test_run_folder_of_version_0_1(videos: Path, tmp_path: Path, task: str) -> None:
    """It loads as weights, starts a run, and is resumed."""
    whole = train(videos, tmp_path / "whole", SAVE, *TASKS[task])
    train_until(STEPS + 2, videos, tmp_path / "run", SAVE, *TASKS[task])
    make_version_0_1(tmp_path / "run")

    best = tmp_path / "run/best.pt"
    model = ffn.load(best)
    assert isinstance(model, ffn.FrameFlexible) == (task == "flexible")
    state, expected = model.state_dict(), weights(tmp_path / "run", "best.pt")
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    started = build(videos, tmp_path / "other", f"model.weights={best}", *TASKS[task])
    state = started.train_step.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in expected.items())

    with pytest.raises(RunError, match=r"optim\.lr 0\.01 -> 0\.5"):
        train(videos, tmp_path / "run", SAVE, "optim.lr=0.5", *TASKS[task])
    train(videos, tmp_path / "run", SAVE, *TASKS[task])

    assert same_weights(tmp_path / "run", whole)
    assert len(read_log(tmp_path / "run")) == len(read_log(whole))


def test_run_of_version_0_1_without_a_checkpoint(videos: Path, tmp_path: Path) -> None:
    train_until(2, videos, tmp_path / "run")
    description = tmp_path / "run/config.yaml"
    old = as_version_0_1(yaml.safe_load(description.read_text()))
    description.write_text(yaml.safe_dump(old))

    train_until(2, videos, tmp_path / "run")
    assert config_from_dict(old) == config(videos, tmp_path / "run")


@pytest.mark.parametrize("damage", [b"\0\0", b"{a: [", b"\xff\xfe", b"", b"- 1\n"])
def test_a_damaged_config_without_a_checkpoint(
    videos: Path, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    train_until(2, videos, tmp_path / "run")
    description = tmp_path / "run/config.yaml"
    whole = description.read_bytes()
    description.write_bytes(damage)

    train_until(2, videos, tmp_path / "run")
    assert description.read_bytes() == whole
    assert (tmp_path / "run/config.yaml.damaged").read_bytes() == damage
    assert "config.yaml is damaged and is written anew" in "".join(capsys.readouterr())


DAMAGE = {
    "zeros": b"\0\0",
    "text": b"\xff\xfe",
    "empty": b"",
    "alias": b"data: &a [1]\ntrain: *a\n",
    "unknown": b"train:\n  epo",
    "other": b"data: {crop: 16, resize: 20}\noptim: {lr: 0.5}\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_config_with_a_checkpoint(
    videos: Path,
    finished: Path,
    tmp_path: Path,
    damage: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    description = run / "config.yaml"
    before = folder_content(run)
    description.write_bytes(DAMAGE[damage])

    train(videos, run)

    expected = config_to_dict(config(videos, run))
    assert yaml.safe_load(description.read_text()) == expected
    kept = run / "config.yaml.damaged"
    assert kept.read_bytes() == DAMAGE[damage]
    other = r"has other options than the checkpoint \(.*optim\.lr 0\.5 -> 0\.01.*\)"
    problem = other if damage == "other" else "is damaged"
    shown = "".join(capsys.readouterr())
    assert re.search(f"{description} {problem} and is written anew; it was kept as {kept}", shown)
    changed = {"config.yaml", kept.name}
    after = folder_content(run)
    assert all(after[name][0] == before[name][0] for name in {*before} - changed)


def test_a_damaged_config_stays_if_the_run_cannot_be_resumed(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "config.yaml").write_bytes(b"")
    before = folder_content(run)

    with pytest.raises(RunError, match=r"optim\.lr 0\.01 -> 0\.5"):
        train(videos, run, "optim.lr=0.5")

    assert folder_content(run) == before


# --- the checkpointer with plain arguments ------------------------------------------------------


def make_checkpointer(folder: Path, *, video: str = "a.mp4", **metadata: Any) -> Checkpointer:
    task = flexible_task((2, 4))
    groups = [{"params": list(task.parameters()), "lr_scale": 1.0}]
    step = TrainStep(
        task,
        torch.optim.SGD(groups, lr=0.1, momentum=0.9),
        CPU,
        normalize=Normalize(Preprocessing(crop=16, resize=20)),
        batch_mix=BatchMix(3),
    )
    return Checkpointer(
        RunFolder(folder, keep=2),
        step,
        Meter(CPU),
        CPU,
        metadata={"config": {"lr": 1}, **metadata},
        videos=RunVideos(folder, Splits([Record(video, 0)], [], ["x"]), "", CPU),
        changed_options=lambda before: [] if before == {"lr": 1} else ["lr 1 -> 2"],
    )


def test_state_of_a_run_is_saved_and_restored(tmp_path: Path) -> None:
    saving = make_checkpointer(tmp_path)
    state = RunState(2, 9, 51.5, {2: {"top1": 50.0}, 4: {"top1": 53.0}}, validation_pending=True)
    with saving.lock():
        assert saving.restore() == RunState()
        assert saving.saved_step is None
        for parameter in saving.train_step.model.parameters():
            nn.init.ones_(parameter)
        saving.save(state)
        assert saving.saved_step == 9
        saving.save_best(state)

    restoring = make_checkpointer(tmp_path)
    with restoring.lock():
        assert restoring.restore() == state
    assert restoring.saved_step == 9
    assert restoring.notes == []
    assert all((p == 1).all() for p in restoring.train_step.model.parameters())
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"lr": 1}
    assert "training" not in load_checkpoint(tmp_path / "best.pt")

    with pytest.raises(RunError, match=r"other options \(lr 1 -> 2\)"):
        make_checkpointer(tmp_path)._check_options({"lr": 2}, tmp_path)
    with pytest.raises(RunError, match="other videos"):
        make_checkpointer(tmp_path, video="b.mp4").restore()


def test_other_classes_are_refused_by_name(tmp_path: Path) -> None:
    saving = make_checkpointer(tmp_path, classes=["left", "right", "up"])
    with saving.lock():
        saving.restore()
        saving.save(RunState(step=1))
    for classes, change in (
        (["left", "up"], "have 2 now: class 1 was 'right' and is 'up'"),
        (["left", "right"], "have 2 now: class 2 was 'up' and is None"),
    ):
        with pytest.raises(RunError, match=f"was trained on 3 classes, and the lists {change}"):
            make_checkpointer(tmp_path, classes=classes).restore()


def test_checkpoints_after_several_non_finite_steps(tmp_path: Path) -> None:
    """Only the first one, without which a run could not be resumed, and the final one."""
    checkpointer = make_checkpointer(tmp_path)
    with checkpointer.lock():
        checkpointer.train_step.non_finite_steps = 2
        checkpointer.save(RunState(step=3))
        checkpointer.save(RunState(step=4))
        assert checkpointer.saved_step == 3
        checkpointer.save(RunState(step=5), final=True)
    assert checkpointer.saved_step == 5


def test_buffers_of_another_number_of_processes_are_averaged() -> None:
    norm = nn.BatchNorm1d(2)
    (own,) = gather_buffers(norm, CPU)
    assert [value.data_ptr() for value in own] != [value.data_ptr() for value in norm.buffers()]
    other = [own[0] + 4, own[1] + 2, torch.tensor(7)]

    load_buffers(norm, [own, other], World(1, 2, torch.device("cpu")))
    assert norm.running_mean.tolist() == [4, 4]
    assert int(norm.num_batches_tracked) == 7

    load_buffers(norm, [own, other], CPU)
    assert norm.running_mean.tolist() == [2, 2]
    assert norm.running_var.tolist() == [2, 2]
    assert int(norm.num_batches_tracked) == 0  # of the first process


def test_a_mask_of_infinities_is_no_fault(tmp_path: Path) -> None:
    checkpointer = make_checkpointer(tmp_path)
    model = checkpointer.train_step.model
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    checkpointer._infinite = infinite_buffers(model)  # as at the start of the run
    with checkpointer.lock():
        checkpointer.save(RunState(step=3))
        assert checkpointer.saved_step == 3
        nn.init.constant_(next(model.parameters()), torch.inf)
        with pytest.raises(FloatingPointError, match="not finite at step 4"):
            checkpointer.save(RunState(step=4))


def test_damaged_start_weights_are_a_fault() -> None:
    norm = nn.BatchNorm1d(2)
    nn.init.constant_(norm.weight, torch.inf)
    norm.running_mean.fill_(torch.nan)
    norm.running_var.fill_(torch.inf)
    assert infinite_buffers(norm) == {"running_var"}
