"""Repositories of the Hugging Face Hub: the form of their names, and their files.

A repository holds the weights, ``model.safetensors``, and their record, ``model.yaml``, which has
their SHA-256. It may hold an early exit for them, ``model.early_exit.json``.
"""

from __future__ import annotations

import re
from pathlib import Path

from ffn.zoo.download import home, is_offline
from ffn.zoo.records import WeightsError

WEIGHTS, RECORD, EARLY_EXIT = "model.safetensors", "model.yaml", "model.early_exit.json"
_NAME = re.compile(r"hf://(?P<repo>[^/@\s]+/[^/@\s]+)(?:@(?P<revision>[^/@\s]+))?")


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
    """Download the files of a repository, or find them in the cache.

    Args:
        name: ``hf://user/name[@revision]``. A branch is looked up for a newer version if there is a
            connection.

    Returns:
        Path of the weights, in ``FFN_HOME/hub``; the record and an early exit are next to them.

    Raises:
        WeightsError: there is no such repository or file, no connection and no copy, or a folder
            that cannot be written.
    """
    import huggingface_hub

    repo, revision = _NAME.fullmatch(name).groups()
    cache = home() / "hub"
    try:
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            cache_dir=cache,
            local_files_only=is_offline(),
            allow_patterns=[WEIGHTS, RECORD, EARLY_EXIT],
        )
    except huggingface_hub.errors.LocalEntryNotFoundError as error:
        cause = _first_line(error.__cause__ or error)
        why = "FFN_OFFLINE is set" if is_offline() else f"the Hub does not answer: {cause}"
        raise WeightsError(f"{name} is not in {cache}, and {why}") from error
    except Exception as error:  # huggingface_hub raises errors of several packages
        raise WeightsError(
            f"cannot download {name}: {_first_line(error)}. A private repository needs `hf auth "
            "login` or HF_TOKEN; FFN_HOME names another folder for downloads"
        ) from error
    if not all(Path(folder, file).is_file() for file in (WEIGHTS, RECORD)):
        raise WeightsError(
            f"{name} has no weights of ffn: expected the files {WEIGHTS} and {RECORD}, as "
            f"ffn.push_to_hub writes them. Download other files with `hf download {repo}`"
        )
    return Path(folder, WEIGHTS)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")
