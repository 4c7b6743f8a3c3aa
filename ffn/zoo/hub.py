"""Find weights in repositories of the Hugging Face Hub.

A repository holds the weights, ``model.safetensors``, and their record, ``model.yaml``.
"""

from __future__ import annotations

import re
from pathlib import Path

from ffn.zoo.download import home, is_offline
from ffn.zoo.records import WeightsError

WEIGHTS, RECORD = "model.safetensors", "model.yaml"
_NAME = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/@\s]+))?")


def is_repository(name: str) -> bool:
    """Whether a name of weights is that of a repository, ``hf://user/name[@revision]``."""
    return bool(_NAME.fullmatch(name))


def fetch_repository(name: str) -> Path:
    """Download the weights and the record of a repository, or find them in the cache.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record is next to them.

    Raises:
        WeightsError: there is no such repository or file, or no connection and no copy.
    """
    import huggingface_hub

    repo, revision = _NAME.fullmatch(name).groups()
    options = {"revision": revision, "cache_dir": home() / "hub", "local_files_only": is_offline()}
    try:
        record = Path(huggingface_hub.hf_hub_download(repo, RECORD, **options))
        # The version of the record, should the branch move in between.
        options["revision"] = record.parent.name
        return Path(huggingface_hub.hf_hub_download(repo, WEIGHTS, **options))
    except huggingface_hub.errors.LocalEntryNotFoundError as error:
        why = "FFN_OFFLINE is set" if is_offline() else "there is no connection"
        raise WeightsError(f"{name} is not in {home() / 'hub'}, and {why}") from error
    except huggingface_hub.errors.EntryNotFoundError as error:
        raise WeightsError(
            f"{name} has no weights of ffn: expected the files {WEIGHTS} and {RECORD}, as "
            f"ffn.push_to_hub writes them. A single file is hf://{repo}/PATH"
        ) from error
    except (huggingface_hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise WeightsError(
            f"cannot download {name}: {cause}. For a private repository, log in with "
            "`hf auth login`, or set HF_TOKEN"
        ) from error
