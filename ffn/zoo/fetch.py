"""Fetch weights: the local file of a name of the zoo, or of the Hugging Face Hub.

A repository of the Hub holds the weights, ``model.safetensors``, and their record, ``model.yaml``,
which has their SHA-256; or ``config.json``, of a network of Hugging Face's ``transformers``.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

from ffn.zoo.download import download, home, is_offline, sha256_of
from ffn.zoo.records import WeightRecord, WeightsError, find_record, read_record, zoo_folder

HUB_WEIGHTS, HUB_RECORD = "model.safetensors", "model.yaml"
HUB_CONFIG, HUB_PICKLE = "config.json", "pytorch_model.bin"  # of transformers
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
_REPOSITORY = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^@\s]+))?")


def fetch_weights(name: str) -> Path:
    """Download weights, unless they are there already, and check their SHA-256.

    Args:
        name: of the zoo (see :func:`ffn.list_weights`), or ``hf://user/name[@revision]``.

    Returns:
        Path of the local file.

    Raises:
        ValueError: no such name in the zoo.
        FileNotFoundError: weights that ship are missing.
        WeightsError: they cannot be downloaded, or have another hash.
    """
    if not is_repository(name):
        return fetch_record(find_record(name))
    path = fetch_repository(name)
    if (record := path.with_suffix(".yaml")).is_file():
        check_hash(path, read_record(record))
    return path


def is_repository(name: str) -> bool:
    """Whether a name of weights is that of a repository, ``hf://user/name[@revision]``.

    Raises:
        ValueError: it starts with ``hf://`` and has another form.
    """
    found = bool(_REPOSITORY.fullmatch(name))
    if name.startswith("hf://") and not found:
        raise ValueError(
            f"{name} is no repository; expected hf://user/name or hf://user/name@revision"
        )
    return found


def fetch_repository(name: str) -> Path:
    """Download the files of a repository, or find them in the cache.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record, or the files of transformers, are next
        to them.

    Raises:
        WeightsError: there is no such repository or file, no connection and no copy, or a folder
            that cannot be written.
    """
    import huggingface_hub

    repo, revision = _REPOSITORY.fullmatch(name).groups()
    options = {"revision": revision, "cache_dir": home() / "hub", "local_files_only": is_offline()}
    fetch = partial(huggingface_hub.snapshot_download, repo, **options)
    try:
        folder = fetch(allow_patterns=[HUB_WEIGHTS, HUB_RECORD, HUB_CONFIG, *PROCESSORS])
        if weights_in(folder) is None and Path(folder, HUB_CONFIG).is_file():
            folder = fetch(allow_patterns=[HUB_PICKLE])
    except Exception as error:  # huggingface_hub raises errors of several packages
        cause = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        raise WeightsError(
            f"cannot download {name}: {cause}. A private repository needs `hf auth login` or "
            "HF_TOKEN; FFN_OFFLINE=1 forbids downloads"
        ) from error
    described = any(Path(folder, file).is_file() for file in (HUB_RECORD, HUB_CONFIG))
    path = weights_in(folder)
    if not described or path is None:
        raise WeightsError(
            f"{name} has no weights of ffn: expected the files {HUB_WEIGHTS} and {HUB_RECORD}, as "
            f"ffn.push_to_hub writes them, or {HUB_CONFIG} of transformers. Download other files "
            f"with `hf download {repo}`"
        )
    return path


def weights_in(folder: str | os.PathLike[str]) -> Path | None:
    """The weights in a folder of ffn or of transformers; None if there are none."""
    paths = (Path(folder, name) for name in (HUB_WEIGHTS, HUB_PICKLE))
    return next((path for path in paths if path.is_file()), None)


def fetch_record(record: WeightRecord) -> Path:
    """The checked file of a record of the zoo; errors are those of :func:`fetch_weights`."""
    if record.file:
        path = zoo_folder() / record.file
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}")
        check_hash(path, record)
        return path
    name = None  # the last part of the address
    if record.source_format is not None:  # the suffix decides how the file is read
        name = record.name + (".pkl" if record.url.endswith(".pkl") else ".pth")
    try:
        return download(record.url or "", sha256=record.sha256, name=name)
    except WeightsError as error:
        if record.source_format is None or not record.page:
            raise
        raise WeightsError(
            f"{error}. You may also download it from {record.page} and convert it with ffn "
            "convert_checkpoint"
        ) from error


def check_hash(path: Path, record: WeightRecord) -> None:
    """Raise WeightsError unless a file has the SHA-256 of its record."""
    found = sha256_of(path)
    if found != record.sha256:
        raise WeightsError(
            f"{path} has sha256 {found}; its record has {record.sha256 or 'no sha256'}: it is "
            "truncated, damaged, or of another version"
        )


def early_exit_beside(name_or_path: str | os.PathLike[str]) -> Path | None:
    """The early exit that is kept with weights; None if there is none.

    Args:
        name_or_path: of the weights, as :func:`ffn.load` takes it; they are downloaded.

    Raises:
        ValueError: no such name in the zoo.
        WeightsError: they cannot be downloaded.
    """
    path = Path(name_or_path)
    if path.is_dir():  # of transformers
        return None
    if path.suffix not in (".pt", ".safetensors"):
        path = fetch_weights(os.fspath(name_or_path))
    kept = early_exit_path(path)
    return kept if kept.is_file() else None


def early_exit_path(weights: Path) -> Path:
    """Where the early exit for a file of weights is kept: ``best.early_exit.json``."""
    return weights.with_name(f"{weights.stem}.early_exit.json")
