"""Checkpoints are written whole or not at all, and nothing in them is executed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ffn.engine import checkpoint
from ffn.engine.checkpoint import CheckpointError, load_checkpoint, save_checkpoint, versions

CONTENT = {
    "model": {"weight": torch.arange(1000.0)},
    "meta": {"classes": ["a", "b"], "metrics": {"4": {"top1": 12.5}}, "versions": versions()},
}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "best.pt"

    save_checkpoint(path, CONTENT)

    loaded = load_checkpoint(path)
    assert torch.equal(loaded["model"]["weight"], CONTENT["model"]["weight"])
    assert loaded["meta"] == CONTENT["meta"]
    assert loaded["format"] == 1
    assert torch.load(path, weights_only=True)["meta"] == CONTENT["meta"]
    assert os.listdir(path.parent) == ["best.pt"]


def test_others_may_read_it_as_any_new_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", CONTENT)
    (tmp_path / "ordinary").touch()

    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("stage", ["write", "flush", "replace"])
def test_failure_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    before = path.read_bytes()

    def fail(*args: object) -> None:
        if stage == "write":  # half of the file is on the disk already
            args[1].write(before[: len(before) // 2])
        raise OSError("disk full")

    place = {
        "write": (checkpoint.torch, "save"),
        "flush": (os, "fsync"),
        "replace": (os, "replace"),
    }
    monkeypatch.setattr(*place[stage], fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(path, {**CONTENT, "meta": {}})

    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.pt"]


def test_interruption_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {})

    assert load_checkpoint(path)["meta"] == CONTENT["meta"]
    assert os.listdir(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_truncated_file(tmp_path: Path, share: float) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])

    with pytest.raises(CheckpointError, match=r"last\.pt .*cut off, or no torch file"):
        load_checkpoint(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize(
    "content", [{"state_dict": {}}, {"format": 99, "model": {}}, [1, 2], torch.zeros(3)], ids=str
)
def test_foreign_file(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)

    with pytest.raises(CheckpointError, match=r"no checkpoint of ffn.*convert_checkpoint\.py"):
        load_checkpoint(path)


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.pt"
    path.write_text("hello")

    with pytest.raises(CheckpointError, match="no torch file"):
        load_checkpoint(path)


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def write_pickle(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("write", [torch.save, write_pickle])
def test_malicious_file_is_refused_and_not_executed(
    tmp_path: Path, write: Callable[[object, Path], None]
) -> None:
    path, mark = tmp_path / "evil.pt", tmp_path / "executed"
    write({"format": 1, "model": {}, "meta": Malicious(mark)}, path)

    with pytest.raises(CheckpointError, match="never loaded here"):
        load_checkpoint(path)

    assert not mark.exists()


def test_versions_are_plain_text() -> None:
    assert set(versions()) == {"python", "torch", "torchvision", "timm"}
    assert {type(value) for value in versions().values()} == {str}
