"""Read weights and their record: zoo names, checkpoints ``.pt``, ``.safetensors`` files.

Nothing in a file is executed: ``.pt`` files are read with torch's ``weights_only``.
"""

from __future__ import annotations

import os
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from ffn.zoo.download import forget
from ffn.zoo.hub import fetch_repository, is_repository
from ffn.zoo.local import by_hand, check_hash, fetch_record
from ffn.zoo.records import WeightRecord, WeightsError, find_record, list_weights, read_record
from ffn.zoo.remap import from_foreign, read_foreign
from ffn.zoo.torch_files import READABLE_FORMATS, load_tensors

FOREIGN = (".pth", ".tar", ".pyth", ".ckpt", ".bin", ".pkl")


def read_weights(name_or_path: str | os.PathLike[str]) -> tuple[WeightRecord, dict[str, Tensor]]:
    """Read a record and its tensors without building a network.

    Arguments and errors are those of :func:`ffn.load`.
    """
    if isinstance(name_or_path, str) and is_repository(name_or_path):
        name_or_path = fetch_repository(name_or_path)
    path = Path(name_or_path)
    if path.suffix == ".pt":
        return _read_checkpoint(path)
    if path.suffix == ".safetensors":
        _check_file(path)
        record = _record_beside(path)
        return record, _read_safetensors(path, record)
    if path.is_dir() and str(name_or_path) not in list_weights():
        _check_file(path)  # raises
    if path.suffix in FOREIGN or path.is_file():
        raise WeightsError(
            f"{path} is neither a training checkpoint .pt nor .safetensors. Convert weights of "
            f"other implementations with ffn convert_checkpoint."
        )
    if path.name != str(name_or_path):
        raise FileNotFoundError(f"no file {path}; weights end in .pt or .safetensors")
    record = find_record(str(name_or_path))
    if record.source_format is not None:
        return record, _read_published(record)
    return record, _read_safetensors(fetch_record(record), record)


def _read_checkpoint(path: Path) -> tuple[WeightRecord, dict[str, Tensor]]:
    _check_file(path)
    content = load_tensors(path)
    if not isinstance(content, dict) or not {"format", "model", "meta"} <= content.keys():
        raise WeightsError(
            f"{path} is not a training checkpoint of ffn: it lacks format, model or meta. Convert "
            f"weights of other implementations with ffn convert_checkpoint."
        )
    if content["format"] not in READABLE_FORMATS:
        raise WeightsError(
            f"{path} has checkpoint format {content['format']}; this version reads "
            f"{' and '.join(map(str, READABLE_FORMATS))}. Update ffn."
        )
    try:
        record = WeightRecord.from_checkpoint(content["meta"], path.stem)
    except (ValueError, TypeError, AttributeError) as error:
        raise WeightsError(f"the meta data of {path} is not valid: {error}") from error
    return record, content["model"]


def _record_beside(path: Path) -> WeightRecord:
    beside = path.with_suffix(".yaml")
    if not beside.is_file():
        raise FileNotFoundError(
            f"no record {beside}: a .safetensors file needs a record of its model, classes and "
            f"preprocessing next to it. ffn.zoo.save_weights and ffn convert_checkpoint "
            "write both."
        )
    return read_record(beside)


def _read_safetensors(path: Path, record: WeightRecord) -> dict[str, Tensor]:
    check_hash(path, record)
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file: {error}") from None


def _read_published(record: WeightRecord) -> dict[str, Tensor]:
    """Download weights of another implementation and convert them to the record's network."""
    path = fetch_record(record)
    try:
        state = read_foreign(path)
    except WeightsError as error:
        aside = forget(path) if record.sha256 is None else path
        raise WeightsError(
            f"{error} It was downloaded to {aside}. Try again, or {by_hand(record)}."
        ) from None
    return from_foreign(
        state,
        source=record.source_format,
        model=record.model,
        trained_frames=record.trained_frames,
        num_classes=record.num_classes,
    ).model.state_dict()


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; pass a file in it")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
