"""Checkpoint files: written atomically, self-describing, loaded with ``weights_only=True``.

A file is a dict::

    format    2
    model     the network's state dict
    meta      model, num_classes, trained_frames, classes, preprocessing, metrics per frame count,
              imports, config, versions, data fingerprint: plain values
    training  optimizer, scaler, statistics per process, counters, position; absent in best.pt

It ends with the SHA-256 of its content (:mod:`ffn.zoo.torch_files`), which every load checks. Files
of format 1, which have no digest, are read too.
"""

from __future__ import annotations

import errno
import platform
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ffn.files import atomic_write
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
    """A file that is not a valid checkpoint, or cannot be written; the message has the remedy."""


class UnreadableCheckpoint(CheckpointError):
    """A file that this version of ffn, or this user, cannot read; it may be valid."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically and sync it to the disk.

    Args:
        path: the file; its folder is created.
        content: ``model``, ``meta`` and perhaps ``training``.

    Raises:
        CheckpointError: the disk is full, the folder read-only or missing, or the disk fails. The
            previous file stays, and no partial file is left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=True) as file:
            torch.save({**content, "format": CHECKPOINT_FORMAT}, file)
            append_digest(file)
    except BaseException as error:
        cause = _os_error(error)
        if cause is None:
            raise
        raise not_written(path, cause) from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without executing pickled code.

    Raises:
        CheckpointError: the file is missing, truncated, altered, or not a checkpoint of ffn.
        UnreadableCheckpoint: it cannot be opened, or a newer version of ffn wrote it.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        content = load_tensors(path)
    except OSError as error:
        raise UnreadableCheckpoint(
            f"cannot read {path}: {error.strerror}; check its permissions and its disk"
        ) from error
    except WeightsError as error:
        raise CheckpointError(
            f"{error}. To train without it, choose another log.output; model.weights can name "
            "another checkpoint to start from, e.g. best.pt of the run"
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
        f"{path} is not a checkpoint of ffn; ffn convert_checkpoint reads other formats"
    )


def not_written(path: Path, cause: OSError) -> CheckpointError:
    """The error for a file that cannot be written, with the remedy."""
    if cause.errno in _FULL:
        remedy = f"Free disk space{_free(path.parent)}, or raise the quota"
    elif cause.errno in _FORBIDDEN:
        remedy = f"Check the permissions of {path.parent}, and whether its disk is read-only"
    elif cause.errno in _GONE:
        remedy = f"{path.parent} was moved, removed or unmounted; restore it"
    else:
        remedy = "Check the disk"
    return CheckpointError(
        f"cannot write {path}: {cause.strerror or cause}. Earlier checkpoints are intact. "
        f"{remedy}; then start the same command again: the run resumes from its last checkpoint"
    )


def _free(folder: Path) -> str:
    with suppress(OSError):
        return f" ({shutil.disk_usage(folder).free / 1e6:,.0f} MB free)"
    return ""


def _os_error(error: BaseException | None) -> OSError | None:
    """The system's error; torch reports a failed write as a RuntimeError."""
    while isinstance(error, (OSError, RuntimeError)):
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None


def versions() -> dict[str, str]:
    """Versions of the libraries that determine results."""
    import timm
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": str(timm.__version__),
    }
