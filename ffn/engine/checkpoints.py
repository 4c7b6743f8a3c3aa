"""Checkpoint files, and the folder of a run, whose files docs/training.md lists.

A checkpoint is a dict::

    format    2
    model     the network's state dict
    meta      model, num_classes, trained_frames, classes, preprocessing, metrics per frame count,
              imports, config, versions, data fingerprint: plain values
    training  optimizer, scaler, statistics per process, parameters of the task, counters, position;
              absent in best.pt

Every load checks the CRC-32 of its parts (:mod:`ffn.zoo.torch_files`).
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from ffn.engine.distributed import World, on_main
from ffn.files import atomic_write, part_of, sync_folder
from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import CHECKPOINT_FORMAT, load_tensors

WAIT = 10.0  # seconds for a run that is ending, and its loader workers, to release the lock


class CheckpointError(ValueError):
    """A file that is not a valid checkpoint; the message has the remedy."""


class RunError(ValueError):
    """A run folder that this run cannot use; the message has the remedy."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write ``model``, ``meta`` and perhaps ``training`` atomically and sync them to the disk.

    Raises:
        OSError: it cannot be written; the previous file stays, and no partial file is left.
    """
    data = io.BytesIO()
    torch.save({**content, "format": CHECKPOINT_FORMAT}, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, sync=True) as file:
        file.write(data.getbuffer())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without executing pickled code.

    Raises:
        CheckpointError: the file is missing, truncated, altered, or not a checkpoint of ffn.
        OSError: it cannot be opened or read.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        content = load_tensors(path)
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of ffn; ffn convert_checkpoint "
            "reads other formats"
        )
    return content


@contextmanager
def locked(folder: Path, world: World) -> Iterator[None]:
    """Create and lock the folder of a run; remove partial files of a killed run.

    All processes call it. The system releases the lock when the main process ends.

    Raises:
        RunError: another run has it.
        OSError: the folder cannot be created or written.
    """
    lock = FileLock(folder / ".lock", timeout=WAIT)

    def acquire() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"another run trains in {folder}; wait for it, stop it, or choose another "
                "log.output"
            ) from None
        for part in (*folder.glob(".*.part"), *folder.glob("checkpoints/.*.part")):
            part.unlink(missing_ok=True)

    on_main(acquire, world)
    try:
        yield
    finally:
        lock.release()


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run to resume from, the newest first; ``last.pt`` is the last."""
    numbered = sorted(folder.glob("checkpoints/step_*.pt"), reverse=True)
    return [*numbered, *folder.glob("last.pt")]


def save_step(folder: Path, content: dict[str, Any], step: int, keep: int = 2) -> None:
    """Write the checkpoint after ``step`` steps as ``last.pt`` too; ``keep`` the newest ones.

    Raises:
        OSError: it cannot be written; all earlier files stay.
    """
    path, last = folder / f"checkpoints/step_{step:08d}.pt", folder / "last.pt"
    save_checkpoint(path, content)
    part = part_of(last)
    part.unlink(missing_ok=True)
    try:
        os.link(path, part)
    except OSError:  # the file system has no hard links
        shutil.copyfile(path, part)
    os.replace(part, last)
    sync_folder(folder)
    numbered = [one for one in checkpoints_in(folder) if one != last and one.name <= path.name]
    for old in numbered[keep:]:
        old.unlink()


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint, and a message for each newer file that is not valid.

    The checkpoint is None if the folder has none at all.

    Raises:
        CheckpointError: there are checkpoints, and none is valid; each is named.
        OSError: the newest one cannot be read; it may be valid.
    """
    invalid: list[str] = []
    for path in checkpoints_in(folder):
        try:
            if "training" in load_checkpoint(path):
                return path, invalid
            invalid.append(f"{path} has no training state to resume from")
        except CheckpointError as error:
            invalid.append(f"invalid checkpoint: {error}")
    if invalid:
        raise CheckpointError(
            f"no checkpoint in {folder} can be used, and none was changed. Restore a copy, or "
            "choose another log.output:\n  " + "\n  ".join(invalid)
        )
    return None, []
