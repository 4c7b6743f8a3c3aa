"""Save a network as ``.safetensors`` with its record; the hash of its tensors."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

from ffn.files import atomic_write, refuse_existing
from ffn.zoo.load import model_from_record
from ffn.zoo.records import WeightRecord
from ffn.zoo.state_match import match_state


def save_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    meta: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> WeightRecord:
    """Save a network and its record for :func:`ffn.load`. Both files are written atomically.

    Args:
        model: a network with the state-dict entries of the one that ``meta`` describes.
        path: ends in ``.safetensors``; the record is next to it, ending in ``.yaml``.
        meta: fields of :class:`WeightRecord`. ``name`` is the stem of ``path`` by default; file,
            sha256 and size are filled in.
        overwrite: replace existing files.

    Returns:
        The record.

    Raises:
        FileExistsError: a file exists and ``overwrite`` is false.
        ValueError: another suffix, or ``meta`` is not a valid record.
        WeightsError: the model is not the one that ``meta`` describes.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} should end in .safetensors")
    beside = path.with_suffix(".yaml")
    refuse_existing([path, beside], overwrite)
    record = WeightRecord.from_dict({"name": path.stem, **meta, "file": path.name})
    # Clones, because safetensors refuses tensors that share memory.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    match_state(state, model_from_record(record).state_dict()).require("the model to be saved")
    content = safetensors.torch.save(state)
    record = replace(record, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    text = yaml.safe_dump(record.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as weights, atomic_write(beside, "w") as description:
        weights.write(content)
        weights.flush()  # a full disk fails here, before either file is replaced
        description.write(text)
    return record


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of a state dict; 64 hex digits.

    The order of the entries and the device do not change it, so a checkpoint and the file that
    is published from it have the same hash.

    Args:
        state: of a network, ``model.state_dict()``.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
