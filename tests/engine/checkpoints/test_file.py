"""Checkpoints are written atomically and checked on load; nothing in them is executed."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ffn.engine.checkpoints import file as checkpoint
from ffn.engine.checkpoints.file import (
    CheckpointError,
    UnreadableCheckpoint,
    load_checkpoint,
    save_checkpoint,
    versions,
)

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
    assert loaded["format"] == 2
    assert torch.load(path, weights_only=True)["meta"] == CONTENT["meta"]
    assert os.listdir(path.parent) == ["best.pt"]


def test_file_has_the_permissions_of_a_new_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "last.pt", CONTENT)
    (tmp_path / "ordinary").touch()

    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("stage", ["write", "flush", "replace"])
def test_failed_write_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    before = path.read_bytes()

    def fail(*args: object) -> None:
        if stage == "write":  # half of the file is on the disk already
            args[1].write(before[: len(before) // 2])
        raise OSError(errno.ENOSPC, "disk full")

    place = {
        "write": (checkpoint.torch, "save"),
        "flush": (os, "fsync"),
        "replace": (os, "replace"),
    }
    monkeypatch.setattr(*place[stage], fail)
    with pytest.raises(
        CheckpointError, match=r"last\.pt: disk full.* are intact\. Free disk space \(\d"
    ):
        save_checkpoint(path, {**CONTENT, "meta": {}})

    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["last.pt"]


def test_interrupted_write_keeps_the_previous_file(
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


# --- the digest ---------------------------------------------------------------------------------


def test_file_ends_with_the_sha256_of_its_content(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)

    whole = path.read_bytes()
    assert whole[-64:].decode() == hashlib.sha256(whole[:-64]).hexdigest()
    with zipfile.ZipFile(path) as archive:  # valid for other readers
        assert archive.testzip() is None
        assert archive.comment == b"ffn sha256:" + whole[-64:]
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert torch.equal(mapped["model"]["weight"], CONTENT["model"]["weight"])


def test_format_1_without_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"format": 1, **CONTENT}, path)

    loaded = load_checkpoint(path)
    assert loaded["meta"] == CONTENT["meta"]
    save_checkpoint(path, loaded)  # writes the current format
    assert load_checkpoint(path)["format"] == 2


def test_format_2_without_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"format": 2, **CONTENT}, path)

    with pytest.raises(CheckpointError, match=r"last\.pt .*SHA-256 at its end is missing"):
        load_checkpoint(path)


def test_file_of_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"format": 3, **CONTENT}, path)

    with pytest.raises(UnreadableCheckpoint, match=r"format 3; this version .* Update"):
        load_checkpoint(path)


def refused(path: Path, damaged: bytes) -> bool:
    path.write_bytes(damaged)
    try:
        load_checkpoint(path)
    except CheckpointError as error:
        text = str(error)
        return str(path) in text and "copy it again" in text and "another log.output" in text
    return False


def cuts(whole: bytes, number: int) -> list[int]:
    size, rng = len(whole), random.Random(0)
    return [*(size * i // 100 for i in range(100)), *rng.sample(range(size), number)]


def flips(whole: bytes, number: int) -> list[int]:
    """Numbers of bits: all of the last 97 bytes, the zip's end record, and some of the others."""
    bits, rng = 8 * len(whole), random.Random(1)
    return [*range(bits - 8 * 97, bits), *rng.sample(range(bits), number)]


def flip(whole: bytes, bit: int) -> bytes:
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("number", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_truncated_file(tmp_path: Path, number: int, figure: Callable[..., None]) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    whole = path.read_bytes()
    assert not refused(path, whole)

    loaded = [size for size in cuts(whole, number) if not refused(path, whole[:size])]
    assert loaded == []
    figure("cut checkpoints that load", f"{len(loaded)} of {len(cuts(whole, number))}")
    assert all(refused(path, whole[:-cut]) for cut in range(1, 98))
    assert refused(path, whole + b"\0")
    assert refused(path, whole + whole)


@pytest.mark.parametrize("number", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_file_with_one_flipped_bit(
    tmp_path: Path, number: int, figure: Callable[..., None]
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)
    whole = path.read_bytes()

    loaded = [bit for bit in flips(whole, number) if not refused(path, flip(whole, bit))]
    assert loaded == []
    figure(
        "checkpoints with a flipped bit that load", f"{len(loaded)} of {len(flips(whole, number))}"
    )


# --- other files --------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize(
    "content", [{"state_dict": {}}, {"format": 99, "model": {}}, [1, 2], torch.zeros(3)], ids=str
)
def test_foreign_file(tmp_path: Path, content: object) -> None:
    path = tmp_path / "other.pt"
    torch.save(content, path)

    with pytest.raises(
        CheckpointError, match=r"is not a checkpoint of ffn; ffn convert_checkpoint"
    ):
        load_checkpoint(path)


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.pt"
    path.write_text("hello")

    with pytest.raises(CheckpointError, match="not a torch file"):
        load_checkpoint(path)


def test_versions_are_plain_text() -> None:
    assert set(versions()) == {"python", "torch", "torchvision", "timm"}
    assert {type(value) for value in versions().values()} == {str}


def test_failing_disk_is_not_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run would skip its newest checkpoint and rename it."""
    path = tmp_path / "last.pt"
    save_checkpoint(path, CONTENT)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(UnreadableCheckpoint, match=r"last\.pt: Input/output error; check .* disk"):
        load_checkpoint(path)
