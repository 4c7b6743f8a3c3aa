"""Checkpoints: written whole or not at all, self-describing, free of pickled objects of ours.

A file is a dict that ``torch.load(weights_only=True)`` reads::

    format    1
    model     the network's state dict
    meta      model, num_classes, trained_frames, classes, preprocessing, metrics per frame count,
              config, versions, data fingerprint: plain values
    training  optimiser, scaler, random states per process, position; absent in best.pt
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from ffn.zoo.load import CHECKPOINT_FORMAT as FORMAT
from ffn.zoo.records import WeightsError
from ffn.zoo.tensors import load_tensors


class CheckpointError(ValueError):
    """A file that is no usable checkpoint; the message says what to do."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically: a crash leaves the file that was there before.

    Args:
        path: the file.
        content: ``model``, ``meta`` and perhaps ``training``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without executing anything in it.

    Raises:
        CheckpointError: the file is missing, cut short, or not one of ours.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        content = load_tensors(path)
    except WeightsError as error:
        raise CheckpointError(
            f"{error}. Without it a run starts anew, in another log.output; model.weights="
            f"{path.with_name('best.pt')} starts from its best network"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is no checkpoint of ffn in format {FORMAT}; tools/convert_checkpoint.py reads "
            "those of other programs"
        )
    return content


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
