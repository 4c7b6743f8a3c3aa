"""Find weights in repositories of the Hugging Face Hub.

A repository holds the weights, ``model.safetensors``, and their record, ``model.yaml``, which has
their SHA-256.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from ffn.zoo.download import home, is_offline, sha256_of
from ffn.zoo.records import WeightsError, read_record

WEIGHTS, RECORD = "model.safetensors", "model.yaml"
_NAME = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/@\s]+))?")

_log = logging.getLogger(__name__)


def is_repository(name: str) -> bool:
    """Whether a name of weights is that of a repository, ``hf://user/name[@revision]``."""
    return bool(_NAME.fullmatch(name))


def fetch_repository(name: str) -> Path:
    """Download the weights and the record of a repository, or find them in the cache.

    Weights in the cache that do not have the SHA-256 of their record are downloaded again, once.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record is next to them.

    Raises:
        WeightsError: there is no such repository or file, no connection and no copy, or other
            weights than the record describes; they are removed from the cache.
    """
    repo, revision = _NAME.fullmatch(name).groups()
    options = {"revision": revision, "cache_dir": home() / "hub", "local_files_only": is_offline()}
    record = _fetch(name, repo, RECORD, **options)
    # The version of the record, should the branch move in between.
    options["revision"] = record.parent.name
    expected = read_record(record).sha256
    weights = _fetch(name, repo, WEIGHTS, **options)
    found = sha256_of(weights)
    if found != expected and not is_offline():
        _log.warning("%s does not have the SHA-256 of its record; downloading it again", weights)
        weights = _fetch(name, repo, WEIGHTS, **options, force_download=True)
        found = sha256_of(weights)
        if found != expected:
            weights.resolve().unlink()
            weights.unlink(missing_ok=True)
    if found != expected:
        raise WeightsError(
            f"{WEIGHTS} of {name} has sha256 {found}; its record has {expected}: the repository is "
            "damaged, or its files are of different versions. The file is not used"
        )
    return weights


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
        why = "FFN_OFFLINE is set" if is_offline() else "there is no connection"
        raise WeightsError(f"{name} is not in {home() / 'hub'}, and {why}") from error
    except huggingface_hub.errors.EntryNotFoundError as error:
        raise WeightsError(
            f"{name} has no weights of ffn: expected the files {WEIGHTS} and {RECORD}, as "
            f"ffn.push_to_hub writes them. A single file is hf://{repo}/PATH"
        ) from error
    except Exception as error:  # huggingface_hub raises errors of several packages
        cause = str(error).strip().partition("\n")[0]
        raise WeightsError(
            f"cannot download {name}: {cause}. For a private repository, log in with "
            "`hf auth login`, or set HF_TOKEN"
        ) from error
