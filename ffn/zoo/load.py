"""Weights into networks and back: zoo names, training checkpoints ``.pt``, ``.safetensors`` files.

Everything is read without executing pickles, ours or anybody's: torch's ``weights_only`` for
``.pt``, safetensors with a record beside it for the rest. Every load is strict.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import yaml
from torch import Tensor, nn

from ffn.core import FrameFlexible, WeightAlteration, convert, extract
from ffn.zoo.create import create_model
from ffn.zoo.download import download, forget, sha256_of
from ffn.zoo.match import Match, match_state
from ffn.zoo.records import WeightRecord, WeightsError, find_record, read_record, zoo_folder
from ffn.zoo.tensors import READABLE_FORMATS, load_tensors

FOREIGN = (".pth", ".tar", ".pyth", ".ckpt", ".bin", ".pkl")


def load(name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> nn.Module:
    """Load a trained network, in eval mode.

    Args:
        name_or_path: a name of the zoo (see :func:`ffn.list_weights`), a training checkpoint
            ``.pt``, or a ``.safetensors`` file with its record, same stem and ``.yaml``, beside it.
        device: where to put it.

    Returns:
        A frame-flexible network, or a plain one if the weights are of a plain one.

    Raises:
        ValueError: no such name in the zoo.
        FileNotFoundError: no such file, or no record beside it.
        WeightsError: the file is damaged, foreign, has another hash, or does not fit its network.
    """
    return load_with_record(name_or_path, device=device)[0]


def load_with_record(
    name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> tuple[nn.Module, WeightRecord]:
    """Like :func:`load`, and what is known about the weights: classes, preprocessing, metrics."""
    record, state = read_weights(name_or_path)
    model = build_model(record)
    match_state(state, model.state_dict()).require(str(name_or_path))
    model.load_state_dict(state)
    return model.to(device).eval(), record


def load_start_weights(
    model: nn.Module, name_or_path: str | os.PathLike[str]
) -> tuple[Match, WeightRecord]:
    """Start a network from trained weights, in place.

    A frame-flexible network also starts from weights of the plain one: every private copy from the
    same norm, the alterations as they are. A classifier for another number of classes starts anew.

    Returns:
        What matched, to print it, and what is known about the weights.

    Raises:
        WeightsError: anything but the classifier does not match.
    """
    record, state = read_weights(name_or_path)
    own = model.state_dict()
    if isinstance(model, FrameFlexible) and record.trained_frames is None:
        own = _plain_state(model)
    match = match_state(state, own).require(str(name_or_path), new_head=True)
    model.load_state_dict(match.state, strict=False)
    return match, record


def build_model(record: WeightRecord) -> nn.Module:
    """The network that a record describes, with fresh weights.

    Raises:
        ValueError: unknown model name.
    """
    model = create_model(record.model, num_classes=record.num_classes, **record.model_args)
    if record.trained_frames is None:
        return model
    return convert(model, record.trained_frames, private=record.private, alter=record.alter)


def read_weights(name_or_path: str | os.PathLike[str]) -> tuple[WeightRecord, dict[str, Tensor]]:
    """Read a record and its tensors without building a network. Arguments and errors of `load`."""
    path = Path(name_or_path)
    if path.suffix == ".pt":
        return _read_checkpoint(path)
    if path.suffix == ".safetensors":
        _check_file(path)
        record = _record_beside(path)
        return record, _read_safetensors(path, record)
    if path.suffix in FOREIGN or path.exists():
        raise WeightsError(
            f"{path} is neither a training checkpoint .pt nor .safetensors. Weights of other "
            "implementations are read by tools/convert_checkpoint.py."
        )
    if path.name != str(name_or_path):
        raise FileNotFoundError(f"no file {path}; weights end in .pt or .safetensors")
    record = find_record(str(name_or_path))
    if record.source_format is not None:
        return record, _read_published(record)
    return record, _read_safetensors(_zoo_file(record), record)


def save_weights(
    model: nn.Module,
    path: str | os.PathLike[str],
    meta: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> WeightRecord:
    """Write a network as ``.safetensors``, with its record, that :func:`load` takes.

    Both files appear complete or not at all.

    Args:
        model: a network with the entries of the one that ``meta`` describes.
        path: ends in ``.safetensors``; the record becomes the same with ``.yaml``.
        meta: fields of :class:`WeightRecord`; name (default: the stem), file, sha256 and size are
            filled in.
        overwrite: replace files that are there.

    Returns:
        The record.

    Raises:
        FileExistsError: a file is there and ``overwrite`` is false.
        ValueError: another suffix, or ``meta`` is no record.
        WeightsError: the model is not the one that ``meta`` describes.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} should end in .safetensors")
    beside = path.with_suffix(".yaml")
    for one in (path, beside):
        if one.exists() and not overwrite:
            raise FileExistsError(f"{one} exists; choose another name or pass overwrite")

    record = WeightRecord.from_dict({"name": path.stem, **meta, "file": path.name})
    # Clones, since safetensors refuses tensors that share memory.
    state = {k: v.detach().cpu().contiguous().clone() for k, v in model.state_dict().items()}
    match_state(state, build_model(record).state_dict()).require("the model to be saved")

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
        weights, description = Path(folder) / path.name, Path(folder) / beside.name
        # Not save_file, which makes files that only their owner may read.
        weights.write_bytes(safetensors.torch.save(state))
        record = replace(record, sha256=sha256_of(weights), size=weights.stat().st_size)
        description.write_text(_to_yaml(record), encoding="utf-8")
        os.replace(weights, path)
        os.replace(description, beside)
    return record


def _to_yaml(record: WeightRecord) -> str:
    try:
        return yaml.safe_dump(record.to_dict(), sort_keys=False, allow_unicode=True, width=100)
    except yaml.YAMLError as error:
        raise ValueError(
            f"the record of {record.name} holds more than plain values: {error}"
        ) from None


def _plain_state(model: FrameFlexible) -> dict[str, Tensor]:
    """The entries that the network had before its conversion."""
    network = extract(model, model.trained_frames[-1])
    sites = {n for n, m in network.named_modules() if isinstance(m, WeightAlteration)}
    entries = network.state_dict().items()
    return {key: value for key, value in entries if key.rpartition(".")[0] not in sites}


def _read_checkpoint(path: Path) -> tuple[WeightRecord, dict[str, Tensor]]:
    _check_file(path)
    content = load_tensors(path)
    if not isinstance(content, dict) or not {"format", "model", "meta"} <= content.keys():
        raise WeightsError(
            f"{path} is no training checkpoint of ffn: it lacks format, model or meta. Weights of "
            "other implementations are read by tools/convert_checkpoint.py."
        )
    if content["format"] not in READABLE_FORMATS:
        raise WeightsError(
            f"{path} has checkpoint format {content['format']}; this version reads "
            f"{' and '.join(map(str, READABLE_FORMATS))}. Update ffn."
        )
    known = {f.name for f in fields(WeightRecord)}
    try:
        meta = {key: value for key, value in content["meta"].items() if key in known}
        record = WeightRecord.from_dict({"name": path.stem, **meta})
    except (ValueError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} does not describe itself: {error}") from error
    return record, content["model"]


def _record_beside(path: Path) -> WeightRecord:
    beside = path.with_suffix(".yaml")
    if not beside.is_file():
        raise FileNotFoundError(
            f"no record {beside}: a .safetensors file is loaded with the record beside it, which "
            "tells model, classes and preprocessing. ffn.zoo.save_weights and "
            "tools/convert_checkpoint.py write both."
        )
    return read_record(beside)


def _read_safetensors(path: Path, record: WeightRecord) -> dict[str, Tensor]:
    found = sha256_of(path)
    if record.sha256 is None:
        raise WeightsError(f"the record of {path} names no sha256; it should be {found}")
    if found != record.sha256:
        raise WeightsError(
            f"{path} ({path.stat().st_size:,} bytes) has sha256 {found}, its record says "
            f"{record.sha256}: it is cut off, damaged, or of another version."
        )
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise WeightsError(f"{path} is no safetensors file: {error}") from None


def _read_published(record: WeightRecord) -> dict[str, Tensor]:
    """Download what others published, and convert it to the network that its record describes."""
    from ffn.zoo.remap import from_foreign, read_foreign  # which reads with the functions here

    if not record.url:
        raise WeightsError(f'"{record.name}" has no address to download; see {record.page}')
    suffix = ".pkl" if record.url.endswith(".pkl") else ".pth"
    path = download(record.url, sha256=record.sha256, name=record.name + suffix)
    try:
        state = read_foreign(path)
    except WeightsError as error:
        aside = forget(path) if record.sha256 is None else path
        raise WeightsError(
            f"{error} It came from {record.url} and lies in {aside}. Try again, or download it by "
            f"hand from {record.page} and use tools/convert_checkpoint.py."
        ) from None
    return from_foreign(
        state,
        source=record.source_format,
        model=record.model,
        trained_frames=record.trained_frames,
        num_classes=record.num_classes,
    ).model.state_dict()


def _zoo_file(record: WeightRecord) -> Path:
    if record.file:
        path = zoo_folder() / record.file
        _check_file(path)
        return path
    if not record.url or not record.sha256:
        raise WeightsError(f'the record of "{record.name}" names no file, or no url with sha256')
    return download(record.url, sha256=record.sha256)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; name the file in it")
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
