"""Find weights in repositories of the Hugging Face Hub.

A repository holds the weights, ``model.safetensors``, and their record, ``model.yaml``, which has
their SHA-256. It may hold a cascade for them, ``model.cascade.safetensors``.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from ffn.zoo.download import disk_error, home, is_offline, sha256_of
from ffn.zoo.records import WeightsError, read_record
from ffn.zoo.web import DISK_ERRORS

WEIGHTS, RECORD, CASCADE = "model.safetensors", "model.yaml", "model.cascade.safetensors"
_NAME = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/@\s]+))?")

_log = logging.getLogger(__name__)


class _MissingError(WeightsError):
    """A repository without a file."""


class _DamagedError(WeightsError):
    """A file of the cache that cannot be used; ``path`` is its."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def is_repository(name: str) -> bool:
    """Whether a name of weights is that of a repository, ``hf://user/name[@revision]``.

    Raises:
        ValueError: it starts with ``hf://`` and has another form.
    """
    found = bool(_NAME.fullmatch(name))
    if name.startswith("hf://") and not found:
        wrong = f"the name of a repository is {name!r}"
        raise ValueError(f"{wrong}; expected hf://user/name or hf://user/name@revision")
    return found


def fetch_repository(name: str) -> Path:
    """Download the weights and the record of a repository, or find them in the cache.

    A record in the cache that cannot be read, and weights that do not have the SHA-256 of their
    record, are downloaded again, once.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record is next to them.

    Raises:
        WeightsError: there is no such repository or file, no connection and no copy, a folder that
            cannot be written, or other weights than the record describes; they are removed from
            the cache.
    """
    try:
        return _fetch_checked(name)
    except _DamagedError as error:
        if is_offline():
            raise
        _log.warning("%s; downloading it again", error)
    try:
        return _fetch_checked(name, force_download=True)
    except _DamagedError as error:
        error.path.resolve().unlink(missing_ok=True)
        error.path.unlink(missing_ok=True)
        raise


def _fetch_checked(name: str, **options: Any) -> Path:
    """The weights of a repository.

    Raises:
        _DamagedError: the record cannot be read, or the weights do not have its SHA-256.
        WeightsError: a file cannot be fetched.
    """
    repo, revision = _NAME.fullmatch(name).groups()
    options |= {"cache_dir": home() / "hub", "local_files_only": is_offline()}
    record = _fetch(name, repo, RECORD, revision=revision, **options)
    try:
        expected = read_record(record).sha256
    except WeightsError as error:
        raise _DamagedError(f"{RECORD} of {name}: {error}", record) from error
    # The version of the record, should the branch move in between.
    weights = _fetch(name, repo, WEIGHTS, revision=record.parent.name, **options)
    found = sha256_of(weights)
    if found != expected:
        raise _DamagedError(
            f"{WEIGHTS} of {name} has sha256 {found}; its record has {expected}: the repository is "
            "damaged, or its files are of different versions",
            weights,
        )
    return weights


def fetch_cascade(name: str) -> Path | None:
    """Download the cascade of a repository, or find it in the cache; None if it has none.

    Args:
        name: ``hf://user/name[@revision]``.

    Raises:
        WeightsError: as :func:`fetch_repository`.
    """
    weights = fetch_repository(name)
    repo, _ = _NAME.fullmatch(name).groups()
    place = {"cache_dir": home() / "hub", "local_files_only": is_offline()}
    try:
        return _fetch(name, repo, CASCADE, revision=weights.parent.name, **place)
    except _MissingError:
        return None


def cached_repositories() -> dict[str, Path]:
    """The weights of repositories in the cache, by name with the commit."""
    found = {}
    for path in sorted((home() / "hub").glob(f"models--*--*/snapshots/*/{WEIGHTS}")):
        repo = path.parents[2].name.removeprefix("models--").replace("--", "/", 1)
        found[f"hf://{repo}@{path.parent.name}"] = path
    return found


def _fetch(name: str, repo: str, file: str, **options: Any) -> Path:
    """One file of a repository, with errors that say what to do."""
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(repo, file, **options))
    except huggingface_hub.errors.LocalEntryNotFoundError as error:
        why = "FFN_OFFLINE is set"
        if not is_offline():
            cause = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
            why = f"there is no connection to the Hub: {cause}"
        what = name if file == RECORD else f"{file} of {name}"
        raise WeightsError(f"{what} is not in {home() / 'hub'}, and {why}") from error
    except huggingface_hub.errors.EntryNotFoundError as error:
        raise _MissingError(
            f"{name} has no weights of ffn: expected the files {WEIGHTS} and {RECORD}, as "
            f"ffn.push_to_hub writes them. Download other files with `hf download {repo}`"
        ) from error
    except Exception as error:  # huggingface_hub raises errors of several packages
        is_of_disk = getattr(error, "errno", None) in DISK_ERRORS
        # A file elsewhere is e.g. that of the token.
        if is_of_disk and Path(error.filename or home()).is_relative_to(home()):
            raise disk_error(home() / "hub", error) from error
        cause = str(error).strip().partition("\n")[0].rstrip(".")
        remedy = "Try again later"
        if getattr(getattr(error, "response", None), "status_code", 0) in (401, 403, 404):
            remedy = "For a private repository, log in with `hf auth login`, or set HF_TOKEN"
        raise WeightsError(f"cannot download {name}: {cause}. {remedy}") from error
