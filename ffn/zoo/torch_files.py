"""Read torch files without executing pickles; damaged ones are errors."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ffn.zoo.records import WeightsError

CHECKPOINT_FORMAT = 2  # of training checkpoints
_ARCHIVE = "is an archive of TorchScript, torch.export or other files, not of torch.save"
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")


def load_tensors(path: Path) -> Any:
    """Read a torch file with ``weights_only=True``; check the CRC-32 of its parts first.

    Raises:
        OSError: it cannot be opened.
        WeightsError: it holds more than tensors and plain values, is damaged, or not a torch file.
    """
    refuse_web_page(path)
    with path.open("rb") as file:  # one open file: it may be replaced between check and load
        try:
            _check_parts(file)
            return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            requested = re.search(r"(?:GLOBAL|class|function)\s+([\w.]+\w)", str(error))
            what = f"requests {requested[1]}" if requested else "is damaged, or not a torch file"
            tensors = "torch.load(path, weights_only=False)['state_dict']"
            file.seek(0)
            if str(error) == _ARCHIVE:
                what, tensors = _ARCHIVE, "torch.jit.load(path).state_dict()"
            elif re.search(rb"[\0\x08]_modules", file.read(2**20)):  # an attribute of modules
                found = "a whole network, torch.load(path, weights_only=False) or an entry of it"
                what, tensors = f"holds {found}, and {what}", "network.state_dict()"
            raise WeightsError(
                f"{path} {what}. Only tensors and plain values are loaded; anything else could "
                "execute code. If you trust its origin, save its tensors alone, where its code can "
                f"be imported: torch.save({{'state_dict': {tensors}}}, new_path)"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # torch raises many kinds of errors for damaged files
            raise WeightsError(
                f"{path} ({path.stat().st_size:,} bytes) is damaged, truncated, or not a torch "
                f"file; download or copy it again ({str(error).strip().partition(chr(10))[0]})"
            ) from None


def _check_parts(file: BinaryIO) -> None:
    """Compare the parts of a zip with their CRC-32, which torch.load does not, and rewind it.

    Raises:
        ValueError: a part has changed since it was written, or would unpack to more than the file.
        UnpicklingError: it is an archive of something else, as of TorchScript.
    """
    if zipfile.is_zipfile(file):  # torch.save wrote other files before version 1.6
        archive = zipfile.ZipFile(file)
        names = {name.rpartition("/")[2] for name in archive.namelist()}
        if "constants.pkl" in names or "data.pkl" not in names:
            raise pickle.UnpicklingError(_ARCHIVE)
        if sum(part.file_size for part in archive.infolist()) > file.seek(0, os.SEEK_END):
            raise ValueError("its parts are larger than the file")
        if damaged := archive.testzip():
            raise ValueError(f"the CRC-32 of {damaged} differs")
    file.seek(0)


def refuse_web_page(path: Path) -> None:
    """Raise WeightsError if the file is a web page, as some download links return."""
    with path.open("rb") as file:
        start = file.read(512)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGE_STARTS):
        raise WeightsError(
            f"{path} is a web page, not a file of weights; open the link in a browser and download "
            "the file there"
        )
