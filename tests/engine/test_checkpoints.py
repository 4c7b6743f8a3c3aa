"""Checkpoint files and run folders: written whole or not at all, the newest valid one is found."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import ROOT
from torch import nn

from ffn.engine.checkpoints import (
    CheckpointError,
    RunError,
    RunFolder,
    load_checkpoint,
    numbered_folder,
    save_checkpoint,
)


def content(step: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((1000,), float(step))},
        "meta": {"model": "tsm_tiny"},
        "training": {"step": step},
    }


def saved(folder: Path, *steps: int, keep: int = 3) -> RunFolder:
    run = RunFolder(folder, keep)
    with run.lock():
        for step in steps:
            run.save(content(step), step)
    return run


def files(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.name != ".lock")


def step_file(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step_{step:08d}.pt"


def damage(path: Path) -> None:
    """Flip a bit in a new file of this name; a hard link to the old one stays valid."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.unlink()
    path.write_bytes(whole)


# --- files --------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "new/a.pt", content(3))
    found = load_checkpoint(tmp_path / "new/a.pt")
    assert torch.equal(found["model"]["weight"], content(3)["model"]["weight"])
    assert (found["training"], found["meta"]) == ({"step": 3}, {"model": "tsm_tiny"})


def test_every_cut_is_noticed_and_every_changed_byte_that_matters(tmp_path: Path) -> None:
    """The others are padding of the zip."""
    path = tmp_path / "a.pt"
    save_checkpoint(path, content(1))
    whole = path.read_bytes()
    for position in range(0, len(whole), 17):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            continue
        assert torch.equal(found["model"]["weight"], content(1)["model"]["weight"])
        assert found["training"] == {"step": 1}
    for position in range(0, len(whole), len(whole) // 23):
        path.write_bytes(whole[:position])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
    damage(step_file(saved(tmp_path, 1).path, 1))
    with pytest.raises(CheckpointError, match="CRC-32"):
        load_checkpoint(step_file(tmp_path, 1))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_other_files_are_refused_and_no_pickle_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": 2, "model": Evil()}, "evil.pt")
    torch.save(nn.Linear(2, 2), "module.pt")
    torch.save({"state_dict": {}}, "foreign.pt")
    torch.save({**content(1), "format": 3}, "newer.pt")
    Path("text.pt").write_text("no checkpoint")
    for name in ("evil", "module", "foreign", "newer", "text", "absent"):
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(Path(f"{name}.pt"))
    assert not Path("executed").exists()


def test_a_full_disk_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(tmp_path, 1)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        run.save(content(2), 2)
    assert str(caught.value.filename) == str(step_file(tmp_path, 2))
    assert files(tmp_path) == ["checkpoints/step_00000001.pt", "last.pt"]


# --- folders ------------------------------------------------------------------------------------


def test_newest_checkpoints_are_kept_and_last_is_the_newest(tmp_path: Path) -> None:
    run = saved(tmp_path, 5, 10, 15, 20, keep=2)
    names = ["checkpoints/step_00000015.pt", "checkpoints/step_00000020.pt", "last.pt"]
    assert files(tmp_path) == names
    assert os.path.samefile(tmp_path / "last.pt", step_file(tmp_path, 20))
    path, found, invalid = run.newest()
    assert (path, found["training"]["step"], invalid) == (step_file(tmp_path, 20), 20, [])


def test_only_own_and_earlier_files_are_removed(tmp_path: Path) -> None:
    run = saved(tmp_path, 8, 9, keep=2)
    (tmp_path / "checkpoints/step_1.pt").write_text("mine")
    for step in (1, 2, 3):  # an earlier checkpoint was restored
        run.save(content(step), step)
    steps = [f"checkpoints/step_0000000{step}.pt" for step in (2, 3, 8, 9)]
    assert files(tmp_path) == [*steps, "checkpoints/step_1.pt", "last.pt"]


def test_without_hard_links_last_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    run = saved(tmp_path, 1, 2, keep=1)
    damage(step_file(tmp_path, 2))
    path, found, invalid = run.newest()
    assert (path, found["training"]["step"], len(invalid)) == (tmp_path / "last.pt", 2, 1)


def test_damaged_checkpoints_are_skipped_and_named(tmp_path: Path) -> None:
    run = saved(tmp_path, 10, 20, 30)
    assert RunFolder(tmp_path / "absent").newest() is None
    (tmp_path / "last.pt").unlink()
    for number, step in enumerate((30, 20)):
        damage(step_file(tmp_path, step))
        _, found, invalid = run.newest()
        assert found["training"]["step"] == step - 10
        assert len(invalid) == number + 1
        assert str(step_file(tmp_path, step)) in invalid[-1]
    damage(step_file(tmp_path, 10))
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match="step_00000030"):
        run.newest()
    assert files(tmp_path) == before


# --- the lock -----------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from ffn.engine.checkpoints import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_folder_has_one_run_until_its_process_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"locked\n"
    run = RunFolder(tmp_path)
    with pytest.raises(RunError, match="another run trains in"), run.lock(wait=0.1):
        pass
    part = tmp_path / ".last.pt.123.part"
    part.touch()
    holder.kill()
    holder.wait()
    with run.lock():
        assert not part.exists()


# --- folders without a name -----------------------------------------------------------------------


def test_folders_are_numbered(tmp_path: Path) -> None:
    first = tmp_path / "runs/tsm"

    def folder_for(lr: float) -> str:
        return numbered_folder(first, lambda options: options == {"lr": lr}).name

    assert folder_for(1) == "tsm"
    (first / "test").mkdir(parents=True)  # results of a test, and no run
    assert folder_for(1) == "tsm"
    RunFolder(first).write_config({"lr": 1})
    assert folder_for(1) == "tsm"  # the same command goes on
    assert folder_for(2) == "tsm_2"
    RunFolder(first).finish({"best": 50.0})
    assert folder_for(1) == "tsm_2"  # a new run of the same config
    (tmp_path / "runs/tsm_2").mkdir()
    (tmp_path / "runs/tsm_2/config.yaml").write_text("- of another program")
    assert folder_for(1) == "tsm_3"
    RunFolder(first).write_config({"lr": 1})  # with more epochs
    assert folder_for(1) == "tsm"
