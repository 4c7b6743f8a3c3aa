"""Checkpoints: written whole or not at all, self-describing, free of pickled objects of ours.

A file is a dict that ``torch.load(weights_only=True)`` reads::

    format    2
    model     the network's state dict
    meta      model, num_classes, trained_frames, classes, preprocessing, metrics per frame count,
              config, versions, data fingerprint: plain values
    training  optimiser, scaler, statistics per process, counts, position; absent in best.pt

It ends with the SHA-256 of all before (:mod:`ffn.zoo.torch_files`), which every load checks. Files
of format 1, which had none, are read too.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ffn.files import part_of, sync_folder
from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import (
    CHECKPOINT_FORMAT,
    READABLE_FORMATS,
    append_digest,
    load_tensors,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class CheckpointError(ValueError):
    """A file that is no usable checkpoint, or cannot be written; the message says what to do."""


class UnreadableCheckpoint(CheckpointError):
    """A file that may be good, but not for this version of ffn, or this user."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically: a failure leaves the file that was there before.

    The bytes are on the disk, not only with the system, before they get their name.

    Args:
        path: the file.
        content: ``model``, ``meta`` and perhaps ``training``.

    Raises:
        CheckpointError: the disk is full, the folder read-only or gone, or the disk fails. Nothing
            unfinished is left.
    """
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # from a dead process of the same number; it may be a link
        with part.open("w+b") as file:
            torch.save({**content, "format": CHECKPOINT_FORMAT}, file)
            append_digest(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        cause = _os_error(error)
        if cause is None:
            raise
        raise not_written(path, cause) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without executing anything in it.

    Raises:
        CheckpointError: the file is missing, cut short, altered, or not one of ours.
        UnreadableCheckpoint: it cannot be opened, or a newer version of ffn wrote it.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        content = load_tensors(path)
    except OSError as error:
        raise UnreadableCheckpoint(
            f"cannot read {path}: {error.strerror}; check who may read it, and its disk"
        ) from error
    except WeightsError as error:
        raise CheckpointError(
            f"{error}. Without it a run starts anew, in another log.output; model.weights may name "
            "another checkpoint to start from, as the best.pt of the run"
        ) from error
    format_ = content.get("format") if isinstance(content, dict) else None
    if format_ in READABLE_FORMATS:
        return content
    if isinstance(format_, int) and {"model", "meta"} <= content.keys():
        raise UnreadableCheckpoint(
            f"{path} has checkpoint format {format_}; this version reads "
            f"{' and '.join(map(str, READABLE_FORMATS))}. Update ffn"
        )
    raise CheckpointError(
        f"{path} is no checkpoint of ffn; tools/convert_checkpoint.py reads those of other programs"
    )


def not_written(path: Path, cause: OSError) -> CheckpointError:
    """What to say of a file that could not be written."""
    if cause.errno in _FULL:
        remedy = f"Free some space{_free(path.parent)}, or raise the quota"
    elif cause.errno in _FORBIDDEN:
        remedy = f"Check who may write to {path.parent}, and how its disk is mounted"
    elif cause.errno in _GONE:
        remedy = f"{path.parent} was moved, removed or unmounted: bring it back"
    else:
        remedy = "Check the disk"
    return CheckpointError(
        f"cannot write {path}: {cause.strerror or cause}. What was saved before is kept, and "
        f"nothing unfinished is left. {remedy}; then start the same command again: a run goes on "
        "from its last checkpoint"
    )


def _free(folder: Path) -> str:
    with suppress(OSError):
        return f" ({shutil.disk_usage(folder).free / 1e6:,.0f} MB are free now)"
    return ""


def _os_error(error: BaseException | None) -> OSError | None:
    """What the system said: torch answers a failed write with a RuntimeError of its own."""
    while isinstance(error, (OSError, RuntimeError)):
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None


def versions() -> dict[str, str]:
    """Versions of what determines results."""
    import timm
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": str(timm.__version__),
    }
