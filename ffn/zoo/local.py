"""The local files of weights: where they are, fetch them, and compare their SHA-256."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ffn.zoo.download import cache_path, download, sha256_of, stored_hash
from ffn.zoo.hub import fetch_early_exit, fetch_repository, is_repository
from ffn.zoo.records import WeightRecord, WeightsError, find_record, list_weights, zoo_folder

WEIGHTS, EARLY_EXIT = (".pt", ".safetensors"), ".early_exit.json"  # ends of the names of files


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
    return fetch_repository(name) if is_repository(name) else fetch_record(find_record(name))


def fetch_record(record: WeightRecord) -> Path:
    """The checked file of a record of the zoo; errors are those of :func:`fetch_weights`."""
    path = weights_path(record)
    if record.file:
        if not path.is_file():
            raise FileNotFoundError(f"no file {path}")
        check_hash(path, record)
        return path
    try:
        return download(record.url or "", sha256=record.sha256, name=_download_name(record))
    except WeightsError as error:
        if record.source_format is None or not record.page:
            raise
        raise WeightsError(f"{error}. You may also {by_hand(record)}") from error


def by_hand(record: WeightRecord) -> str:
    """What to do if the file of a published record cannot be downloaded or read."""
    return f"download it from {record.page} and convert it with ffn convert_checkpoint"


def weights_path(record: WeightRecord) -> Path:
    """Where the file of a record of the zoo is, or will be once it is downloaded."""
    if record.file:
        return zoo_folder() / record.file
    return cache_path(record.url or "", sha256=record.sha256, name=_download_name(record))


def check_hash(path: Path, record: WeightRecord) -> None:
    """Raise WeightsError unless a file has the SHA-256 of its record."""
    found = sha256_of(path)
    if found != record.sha256:
        raise WeightsError(
            f"{path} has sha256 {found}; its record has {record.sha256 or 'no sha256'}: it is "
            "truncated, damaged, or of another version"
        )


@dataclass(frozen=True)
class Verdict:
    """What :func:`verify_weights` found.

    Attributes:
        name: of the weights.
        status: "ok"; "differs", from the expected hash; "no hash" that is known; "missing", though
            it ships with ffn; or "not downloaded".
        detail: the path and hashes of a problem; else empty.
    """

    name: str
    status: str
    detail: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether the weights are there and were not found right, or should be there."""
        return self.status not in ("ok", "not downloaded")


def verify_weights(pattern: str = "*") -> Iterator[Verdict]:
    """Compare the SHA-256 of local weights with their record or stored hash; changes nothing.

    Args:
        pattern: glob pattern of the names. Repositories are compared whenever they are loaded.

    Yields:
        A verdict on each.
    """
    for name in list_weights(pattern):
        record = find_record(name)
        path = weights_path(record)
        if not path.is_file():
            yield Verdict(name, *(("missing", str(path)) if record.file else ("not downloaded",)))
            continue
        found, expected = sha256_of(path), record.sha256 or stored_hash(path)
        if found == expected:
            yield Verdict(name, "ok")
        else:
            status = "no hash" if expected is None else "differs"
            yield Verdict(name, status, f"{path}: sha256 {found}, expected {expected or 'unknown'}")


def _download_name(record: WeightRecord) -> str | None:
    """Of the local file; None is the last part of the address.

    The suffix decides how weights of other implementations are read.
    """
    if record.source_format is None:
        return None
    return record.name + (".pkl" if record.url.endswith(".pkl") else ".pth")


def early_exit_beside(name_or_path: str | os.PathLike[str]) -> Path | None:
    """The early exit that is kept with weights; None if there is none.

    Args:
        name_or_path: of the weights, as :func:`ffn.load` takes it. A repository of the Hub is
            downloaded.

    Raises:
        ValueError: no such name in the zoo.
        WeightsError: a repository cannot be downloaded.
    """
    name = os.fspath(name_or_path)
    if is_repository(name):
        return fetch_early_exit(name)
    path = Path(name)
    if path.suffix not in WEIGHTS:
        path = weights_path(find_record(name))
    kept = early_exit_path(path)
    return kept if kept.is_file() else None


def early_exit_path(weights: Path) -> Path:
    """Where the early exit for a file of weights is kept: ``best.early_exit.json``."""
    return weights.with_name(f"{weights.stem}{EARLY_EXIT}")
