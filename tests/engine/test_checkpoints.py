"""Checkpoint files and run folders: written whole or not at all, the newest valid one is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import CPU
from torch import nn

from ffn.engine import checkpoints
from ffn.engine.checkpoints import (
    CheckpointError,
    RunError,
    load_checkpoint,
    locked,
    newest_checkpoint,
    save_checkpoint,
    save_step,
)


def content(step: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((1000,), float(step))},
        "meta": {"model": "tsm_tiny"},
        "training": {"step": step},
    }


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def step_file(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step_{step:08d}.pt"


def damage(path: Path) -> None:
    """Flip a bit in a new file of this name; a hard link to the old one stays valid."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.unlink()
    path.write_bytes(whole)


def test_every_cut_is_noticed_and_every_changed_byte_that_matters(tmp_path: Path) -> None:
    """The others are padding of the zip."""
    path = tmp_path / "new/a.pt"
    save_checkpoint(path, content(1))
    whole = path.read_bytes()
    for position in range(0, len(whole), 17):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            continue
        assert torch.equal(found["model"]["weight"], content(1)["model"]["weight"])
        assert (found["training"], found["meta"]) == ({"step": 1}, {"model": "tsm_tiny"})
    for position in range(0, len(whole), len(whole) // 23):
        path.write_bytes(whole[:position])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


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
    for name in ("evil", "module", "foreign", "absent"):
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(Path(f"{name}.pt"))
    assert not Path("executed").exists()


def test_a_full_disk_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save_step(tmp_path, content(1), 1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        save_step(tmp_path, content(2), 2)
    assert str(caught.value.filename) == str(step_file(tmp_path, 2))
    assert files(tmp_path) == ["checkpoints/step_00000001.pt", "last.pt"]


def test_newest_checkpoints_are_kept_and_last_is_the_newest(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20, 3):  # an earlier checkpoint was restored before the last one
        save_step(tmp_path, content(step), step)
    names = [f"checkpoints/step_000000{step}.pt" for step in ("03", "15", "20")]
    assert files(tmp_path) == [*names, "last.pt"]
    assert os.path.samefile(tmp_path / "last.pt", step_file(tmp_path, 3))
    assert newest_checkpoint(tmp_path) == (step_file(tmp_path, 20), [])


def test_damaged_checkpoints_are_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    assert newest_checkpoint(tmp_path) == (None, [])
    monkeypatch.setattr(os, "link", no_links)  # last.pt is a copy
    for step in (10, 20):
        save_step(tmp_path, content(step), step)
    paths = [step_file(tmp_path, 20), step_file(tmp_path, 10), tmp_path / "last.pt"]
    for number, path in enumerate(paths):
        found, invalid = newest_checkpoint(tmp_path)
        assert (found, len(invalid)) == (path, number)
        damage(path)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match="step_00000020"):
        newest_checkpoint(tmp_path)
    assert files(tmp_path) == before


def test_a_folder_has_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / ".last.pt.123.part"
    part.touch()
    monkeypatch.setattr(checkpoints, "WAIT", 0.1)
    with locked(tmp_path, CPU):
        assert not part.exists()
        with pytest.raises(RunError, match="another run trains in"), locked(tmp_path, CPU):
            pass
    with locked(tmp_path, CPU):
        pass
