"""Checkpoints of a run folder: the newest valid one is found; no file is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from run_toys import content, damage, files, saved, step_file

from ffn.engine.checkpoints.file import CheckpointError, UnreadableCheckpoint, load_checkpoint
from ffn.engine.checkpoints.folder import RunFolder

# --- saving --------------------------------------------------------------------------------------


def test_newest_checkpoints_are_kept_and_last_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path / "run", 5, 10, 15, 20, keep=2)

    run = tmp_path / "run"
    names = ["checkpoints/step_00000015.pt", "checkpoints/step_00000020.pt", "last.pt"]
    assert files(run) == names
    assert os.path.samefile(run / "last.pt", step_file(run, 20))
    assert load_checkpoint(run / "last.pt")["training"]["step"] == 20
    found = RunFolder(run, 2).newest()
    assert found.path == step_file(run, 20)
    assert torch.equal(found.content["model"]["weight"], content(20)["model"]["weight"])
    assert found.invalid == []


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    run = saved(tmp_path, 1)
    others = ("step_1.pt", "step_00000000.pt.copy", "step_00000000.pth", "best.pt", "notes.txt")
    for name in others:
        (tmp_path / "checkpoints" / name).write_text("mine")

    with run.lock():
        run.keep = 1
        run.save(content(2), 2)

    kept = {f"checkpoints/{name}" for name in others}
    assert set(files(tmp_path)) == {*kept, "checkpoints/step_00000002.pt", "last.pt"}


def test_later_steps_are_not_removed(tmp_path: Path) -> None:
    """Otherwise the file just written would be the oldest and be removed."""
    run = saved(tmp_path, 8, 9, keep=2)

    for step in (1, 2, 3):
        run.save(content(step), step)

    steps = [f"checkpoints/step_0000000{step}.pt" for step in (2, 3, 8, 9)]
    assert files(tmp_path) == [*steps, "last.pt"]


def test_step_saved_again_is_replaced(tmp_path: Path) -> None:
    """As at the end of an epoch whose last step has been saved."""
    run = saved(tmp_path, 4)
    again = content(4)
    again["training"]["epoch"] = 1
    run.save(again, 4)

    assert files(tmp_path) == ["checkpoints/step_00000004.pt", "last.pt"]
    for path in (step_file(tmp_path, 4), tmp_path / "last.pt"):
        assert load_checkpoint(path)["training"] == {"step": 4, "epoch": 1}


def test_without_hard_links_last_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    run = saved(tmp_path, 1, 2)

    last = tmp_path / "last.pt"
    assert not os.path.samefile(last, step_file(tmp_path, 2))
    assert last.read_bytes() == step_file(tmp_path, 2).read_bytes()
    assert run.newest().path == step_file(tmp_path, 2)
    damage(step_file(tmp_path, 2))
    found = run.newest()
    assert (found.path, found.content["training"]["step"]) == (last, 2)
    assert len(found.invalid) == 1


def test_link_of_a_killed_process_is_not_written_through(tmp_path: Path) -> None:
    """A killed process with the same id, as in a container, left a link to a checkpoint."""
    run = saved(tmp_path, 1)
    for name in (".last.pt", "checkpoints/.step_00000002.pt"):
        part = (tmp_path / name).with_name(f"{Path(name).name}.{os.getpid()}.part")
        os.link(step_file(tmp_path, 1), part)
    before = step_file(tmp_path, 1).read_bytes()

    run.save(content(2), 2)

    assert step_file(tmp_path, 1).read_bytes() == before
    assert run.newest().content["training"]["step"] == 2


def test_best_is_a_file_of_its_own(tmp_path: Path) -> None:
    run = saved(tmp_path, 1)
    best = {key: value for key, value in content(1).items() if key != "training"}

    assert run.save_best(best) == tmp_path / "best.pt"

    assert set(load_checkpoint(tmp_path / "best.pt")) == {"format", "model", "meta"}
    assert run.newest().path == step_file(tmp_path, 1)


def test_at_least_one_checkpoint_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0; at least 1"):
        RunFolder(tmp_path, 0)


# --- the newest valid one -------------------------------------------------------------------------


def test_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "absent", 1).newest() is None
    (tmp_path / "checkpoints").mkdir()
    assert RunFolder(tmp_path, 1).newest() is None


def test_run_of_format_1_has_only_last(tmp_path: Path) -> None:
    torch.save({"format": 1, **content(7)}, tmp_path / "last.pt")

    run = RunFolder(tmp_path, 2)
    found = run.newest()
    assert (found.path, found.content["training"]["step"]) == (tmp_path / "last.pt", 7)
    run.save(content(8), 8)
    assert files(tmp_path) == ["checkpoints/step_00000008.pt", "last.pt"]


def test_last_is_used_without_its_numbered_file(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2)
    step_file(tmp_path, 2).unlink()

    assert run.newest().path == tmp_path / "last.pt"


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_broken_checkpoints_are_skipped_and_named(tmp_path: Path, broken: int) -> None:
    run = saved(tmp_path, 10, 20, 30, 40, keep=4)
    (tmp_path / "last.pt").unlink()
    paths = [step_file(tmp_path, step) for step in (40, 30, 20)[:broken]]
    damaged = {path: damage(path) for path in paths}

    found = run.newest()

    assert found.content["training"]["step"] == (30, 20, 10)[broken - 1]
    assert len(found.invalid) == broken
    for path, reason in zip(paths, found.invalid, strict=True):
        assert str(path) in reason
        assert "copy it again" in reason
    assert {path: path.read_bytes() for path in paths} == damaged  # reading changes nothing

    run.save(content(35), 35)  # the run is resumed

    for path in paths:
        assert path.with_name(f"{path.name}.broken").read_bytes() == damaged[path]
        assert not path.exists()
    assert RunFolder(tmp_path, 4).newest().invalid == []
    assert RunFolder(tmp_path, 4).newest().content["training"]["step"] == 35


def test_broken_checkpoints_are_never_overwritten(tmp_path: Path) -> None:
    """Even if the newest one was not requested before."""
    saved(tmp_path, 1)
    contents = []
    for _ in range(3):
        contents.append(damage(step_file(tmp_path, 1)))
        RunFolder(tmp_path, 1).save(content(1), 1)
    (tmp_path / "best.pt").write_bytes(b"broken")
    RunFolder(tmp_path, 1).save_best(content(1))

    path = step_file(tmp_path, 1)
    kept = [path.with_name(path.name + ending) for ending in (".broken", ".broken2", ".broken3")]
    assert [one.read_bytes() for one in kept] == contents
    assert (tmp_path / "best.pt.broken").read_bytes() == b"broken"
    assert load_checkpoint(tmp_path / "best.pt")["meta"] == content(1)["meta"]


def test_error_names_each_checkpoint_if_all_are_broken(tmp_path: Path) -> None:
    run = saved(tmp_path, 1, 2)
    (tmp_path / "last.pt").unlink()
    (tmp_path / "last.pt").write_bytes(b"")
    before = [damage(step_file(tmp_path, step)) for step in (1, 2)]

    with pytest.raises(CheckpointError, match=r"3 checkpoint\(s\) and none can be used") as error:
        run.newest()

    for path in (tmp_path / "last.pt", step_file(tmp_path, 1), step_file(tmp_path, 2)):
        assert str(path) in str(error.value)
    assert "start a new run in another log.output" in str(error.value)
    assert [step_file(tmp_path, step).read_bytes() for step in (1, 2)] == before


def test_checkpoint_without_training_state_is_skipped(tmp_path: Path) -> None:
    run = saved(tmp_path, 1)
    del (best := content(2))["training"]
    run.save(best, 2)

    found = run.newest()
    assert found.content["training"]["step"] == 1
    assert "step_00000002.pt has no training state" in found.invalid[0]


def test_checkpoint_of_a_newer_version_is_not_broken(tmp_path: Path) -> None:
    """Resuming from an older checkpoint would lose its steps."""
    run = saved(tmp_path, 1)
    torch.save({"format": 3, **content(2)}, step_file(tmp_path, 2))

    with pytest.raises(UnreadableCheckpoint, match=r"step_00000002\.pt has checkpoint format 3"):
        run.newest()
