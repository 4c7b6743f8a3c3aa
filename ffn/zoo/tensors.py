"""Torch files, read without executing what they hold."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from ffn.zoo.digest import check_digest
from ffn.zoo.records import WeightsError

CHECKPOINT_FORMAT = 2  # of training checkpoints; from 2 on a file ends with its digest
READABLE_FORMATS = (1, 2)


# A disk or a network that fails says nothing about what the file holds.
_NOT_THE_FILE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOMEM, errno.EACCES)


def load_tensors(path: Path) -> Any:
    """Read a torch file without executing pickles.

    The digest of one that ends with a digest is checked first, see :mod:`ffn.zoo.digest`.

    Raises:
        OSError: it cannot be opened or read.
        WeightsError: it holds more than tensors and plain values, is damaged, or no torch file.
    """
    refuse_web_page(path)
    try:
        with path.open("rb") as file:  # one file from the check to the load, whatever replaces it
            has_digest = check_digest(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
        if not has_digest and _needs_digest(content):
            raise ValueError("the SHA-256 at its end is gone")
        return content
    except pickle.UnpicklingError as error:
        asked = re.search(r"(?:GLOBAL|class|function)\s+([\w.]+\w)", str(error))
        reason = (
            f"asks for {asked[1]}"
            if asked
            else "is no torch file, a damaged one (then fetch or copy it again), or holds objects"
        )
        raise WeightsError(
            f"{path} {reason}: beside tensors and plain values, what a file holds could run any "
            "code and is never loaded here. If you trust its origin, save its tensors alone: "
            "torch.save({'state_dict': torch.load(path, weights_only=False)['state_dict']}, "
            "new_path)."
        ) from None
    except Exception as error:  # torch raises many kinds, by where the file is damaged
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in _NOT_THE_FILE:
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]
        raise WeightsError(
            f"{path} ({path.stat().st_size:,} bytes) is damaged, cut off, or no torch file; fetch "
            f"or copy it again ({reason})"
        ) from None


def _needs_digest(content: Any) -> bool:
    """Whether it is a training checkpoint from after digests came."""
    if not isinstance(content, dict) or not {"format", "model", "meta"} <= content.keys():
        return False
    return content["format"] == CHECKPOINT_FORMAT


def refuse_web_page(path: Path) -> None:
    """Raise WeightsError for the page that a download link gave in place of a large file."""
    with open(path, "rb") as file:
        start = file.read(512).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise WeightsError(
            f"{path} is a web page, not a checkpoint: the link leads to a page that asks or "
            "explains something. Open it in a browser and save the file it offers."
        )
