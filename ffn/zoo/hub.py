"""Weights in repositories of the Hugging Face Hub: load them, and publish them with a card.

A repository holds the weights, ``model.safetensors``, and their record, ``model.yaml``, which has
their SHA-256. It may hold an early exit for them, ``model.early_exit.json``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ffn.zoo.download import home, is_offline, sha256_of
from ffn.zoo.records import WeightsError, read_record

WEIGHTS, RECORD, EARLY_EXIT = "model.safetensors", "model.yaml", "model.early_exit.json"
_NAME = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/@\s]+))?")


class _MissingError(WeightsError):
    """A repository without a file."""


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

    Weights that do not have the SHA-256 of their record are downloaded again, once.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record is next to them.

    Raises:
        WeightsError: there is no such repository or file, no connection and no copy, a folder that
            cannot be written, or other weights than the record describes.
    """
    repo, revision = _NAME.fullmatch(name).groups()
    for again in (False, True):
        record = _fetch(name, repo, RECORD, revision, again)
        expected = read_record(record).sha256
        # The version of the record, should the branch move in between.
        weights = _fetch(name, repo, WEIGHTS, record.parent.name, again)
        found = sha256_of(weights)
        if found == expected:
            return weights
        if is_offline():
            break
    raise WeightsError(
        f"{WEIGHTS} of {name} has sha256 {found}; its record has {expected}: the repository is "
        "damaged, or its files are of different versions"
    )


def fetch_early_exit(name: str) -> Path | None:
    """Download the early exit of a repository, or find it in the cache; None if it has none.

    Args:
        name: ``hf://user/name[@revision]``.

    Raises:
        WeightsError: as :func:`fetch_repository`.
    """
    weights = fetch_repository(name)
    repo, _ = _NAME.fullmatch(name).groups()
    try:
        return _fetch(name, repo, EARLY_EXIT, weights.parent.name)
    except _MissingError:
        return None


def _fetch(name: str, repo: str, file: str, revision: str | None, again: bool = False) -> Path:
    """One file of a repository, with errors that say what to do."""
    import huggingface_hub

    options: dict[str, Any] = {"cache_dir": home() / "hub", "local_files_only": is_offline()}
    try:
        return Path(
            huggingface_hub.hf_hub_download(
                repo, file, revision=revision, force_download=again, **options
            )
        )
    except huggingface_hub.errors.LocalEntryNotFoundError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        why = "FFN_OFFLINE is set" if is_offline() else f"the Hub does not answer: {cause}"
        raise WeightsError(f"{file} of {name} is not in {home() / 'hub'}, and {why}") from error
    except huggingface_hub.errors.EntryNotFoundError as error:
        raise _MissingError(
            f"{name} has no weights of ffn: expected the files {WEIGHTS} and {RECORD}, as "
            f"ffn.push_to_hub writes them. Download other files with `hf download {repo}`"
        ) from error
    except Exception as error:  # huggingface_hub raises errors of several packages
        cause = str(error).strip().partition("\n")[0].rstrip(".")
        raise WeightsError(
            f"cannot download {name}: {cause}. A private repository needs `hf auth login` or "
            "HF_TOKEN; FFN_HOME names another folder for downloads"
        ) from error
