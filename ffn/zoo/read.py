"""Read weights and their record: zoo names, ``.pt``, ``.safetensors``, folders of transformers.

Nothing in a file is executed: ``.pt`` files are read with torch's ``weights_only``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from ffn.zoo.download import forget
from ffn.zoo.fetch import (
    HUB_CONFIG,
    HUB_WEIGHTS,
    PROCESSORS,
    check_hash,
    fetch_record,
    fetch_repository,
    is_repository,
    weights_in,
)
from ffn.zoo.records import WeightRecord, WeightsError, find_record, list_weights, read_record
from ffn.zoo.remap import from_foreign, read_foreign, vit
from ffn.zoo.torch_files import CHECKPOINT_FORMAT, load_tensors

_CONVERT = "Convert weights of other implementations with ffn convert_checkpoint"


def read_weights(name_or_path: str | os.PathLike[str]) -> tuple[WeightRecord, dict[str, Tensor]]:
    """Read a record and its tensors without building a network.

    Arguments and errors are those of :func:`ffn.load`.
    """
    name = os.fspath(name_or_path)
    if name in list_weights():
        record = find_record(name)
        if record.source_format is not None:
            return record, _read_published(record)
        return record, _tensors(fetch_record(record))
    path = fetch_repository(name) if is_repository(name) else Path(name)
    if is_repository(name) and not path.with_suffix(".yaml").is_file():
        return _read_transformers(path.parent, name.partition("@")[0].rpartition("/")[2])
    if Path(path, HUB_CONFIG).is_file() and weights_in(path):
        return _read_transformers(path, path.resolve().name)
    if path.is_dir():
        other = f"or a folder with {HUB_WEIGHTS} and {HUB_CONFIG} of transformers"
        raise FileNotFoundError(f"{path} is a folder; pass a file in it, {other}")
    if path.suffix not in (".pt", ".safetensors"):
        if path.is_file():
            raise WeightsError(f"{path} is neither a checkpoint .pt nor .safetensors. {_CONVERT}")
        if path.name == name:
            find_record(name)  # raises: the message has the closest names
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}; weights end in .pt or .safetensors")
    return _read_checkpoint(path) if path.suffix == ".pt" else _read_saved(path)


def _read_checkpoint(path: Path) -> tuple[WeightRecord, dict[str, Tensor]]:
    content = load_tensors(path)
    keys = content.keys() if isinstance(content, dict) else ()
    if not {"model", "meta"} <= {*keys} or content.get("format") != CHECKPOINT_FORMAT:
        raise WeightsError(f"{path} is not a checkpoint of this version of ffn. {_CONVERT}")
    try:
        record = WeightRecord.from_checkpoint(content["meta"], path.stem)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"the meta data of {path} is not valid: {error}") from error
    return record, content["model"]


def _read_saved(path: Path) -> tuple[WeightRecord, dict[str, Tensor]]:
    beside = path.with_suffix(".yaml")
    if not beside.is_file():
        raise FileNotFoundError(
            f"no record {beside}: a .safetensors file needs a record of its model, classes and "
            "preprocessing next to it. ffn.zoo.save_weights writes both"
        )
    record = read_record(beside)
    check_hash(path, record)
    return record, _tensors(path)


def _read_transformers(folder: Path, name: str) -> tuple[WeightRecord, dict[str, Tensor]]:
    """Read the files that ``save_pretrained`` of transformers writes."""
    found = [file for file in PROCESSORS if Path(folder, file).is_file()]
    if not found:
        files = " or ".join(PROCESSORS)
        raise WeightsError(f"{name} has no {files}; save its processor next to {HUB_CONFIG}")
    path = weights_in(folder)
    state = vit.rename(_tensors(path) if path.name == HUB_WEIGHTS else read_foreign(path))
    config, processor = (_read_json(folder / file) for file in (HUB_CONFIG, found[0]))
    return vit.record_of(config, processor, state, name), state


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} has no keys and values, but {type(content).__name__}")
    return content


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from None


def _read_published(record: WeightRecord) -> dict[str, Tensor]:
    """Download weights of another implementation and convert them to the record's network."""
    path = fetch_record(record)
    try:
        state = read_foreign(path)
    except WeightsError:
        if record.sha256 is None:
            forget(path)
        raise
    return from_foreign(
        state,
        source=record.source_format,
        model=record.model,
        trained_frames=record.trained_frames,
        num_classes=record.num_classes,
    ).model.state_dict()
