"""Read torch files without executing pickles; append and check the SHA-256 at their end.

A training checkpoint ends with ``ffn sha256:`` and 64 hex digits: the SHA-256 of all bytes before
the digits. Both are the comment of the zip file, so plain ``torch.load`` still reads it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ffn.zoo.records import WeightsError

CHECKPOINT_FORMAT = 2  # of training checkpoints; files of format 2 end with their SHA-256
READABLE_FORMATS = (1, 2)

MARK = b"ffn sha256:"
DIGITS = 64
CHUNK = 1 << 20  # bytes
_END_RECORD = b"PK\x05\x06"
_END_SIZE = 22  # bytes of a zip's end record; its last two are the length of the comment
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")


def load_tensors(path: Path) -> Any:
    """Read a torch file with ``weights_only=True``; check its SHA-256 first if it has one.

    Raises:
        OSError: it cannot be opened.
        WeightsError: it holds more than tensors and plain values, is damaged, or not a torch file.
    """
    refuse_web_page(path)
    with path.open("rb") as file:  # one open file: it may be replaced between check and load
        try:
            has_digest = check_digest(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            requested = re.search(r"(?:GLOBAL|class|function)\s+([\w.]+\w)", str(error))
            what = "is damaged, not a torch file, or contains objects"
            raise WeightsError(
                f"{path} {f'requests {requested[1]}' if requested else what}. Only tensors and "
                "plain values are loaded; anything else could execute code. If you trust its "
                "origin, save its tensors alone: torch.save({'state_dict': "
                "torch.load(path, weights_only=False)['state_dict']}, new_path)"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # torch raises many kinds of errors for damaged files
            raise WeightsError(
                f"{path} ({path.stat().st_size:,} bytes) is damaged, truncated, or not a torch "
                f"file; download or copy it again ({str(error).strip().partition(chr(10))[0]})"
            ) from None
    is_checkpoint = isinstance(content, dict) and {"format", "model", "meta"} <= content.keys()
    if is_checkpoint and content["format"] == CHECKPOINT_FORMAT and not has_digest:
        raise WeightsError(f"{path} is damaged: the SHA-256 at its end is missing")
    return content


def refuse_web_page(path: Path) -> None:
    """Raise WeightsError if the file is a web page, as some download links return."""
    with path.open("rb") as file:
        start = file.read(512)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGE_STARTS):
        raise WeightsError(
            f"{path} is a web page, not a file of weights; open the link in a browser and download "
            "the file there"
        )


def append_digest(file: BinaryIO) -> None:
    """Append the SHA-256 of a torch file to it, as the comment of its zip.

    Args:
        file: the complete file, open for reading and writing.

    Raises:
        ValueError: it is not a zip, or has a comment.
    """
    file.seek(-_END_SIZE, os.SEEK_END)
    end = file.read(_END_SIZE)
    if not end.startswith(_END_RECORD) or end[-2:] != b"\0\0":
        raise ValueError("the file is not a zip without comment, as torch.save writes it")
    file.seek(-2, os.SEEK_END)
    file.write((len(MARK) + DIGITS).to_bytes(2, "little") + MARK)
    file.write(_sha256(file, file.tell()))


def check_digest(file: BinaryIO) -> bool:
    """Compare a file with the SHA-256 at its end, and rewind it.

    Hashing takes 0.5 s per GB on a processor with SHA instructions.

    Returns:
        Whether the file has a digest. A file without one is not checked.

    Raises:
        ValueError: the file has changed since the digest was written.
    """
    size = file.seek(0, os.SEEK_END)
    start = size - DIGITS - len(MARK)
    file.seek(max(start, 0))
    mark, digits = file.read(len(MARK)), file.read(DIGITS)
    has_digest = start >= 0 and mark == MARK
    # Only the mark decides: with a damaged length of the comment, the digest is still checked.
    if has_digest and _sha256(file, size - DIGITS) != digits:
        raise ValueError("its bytes are not those of the SHA-256 it ends with")
    file.seek(0)
    return has_digest


def _sha256(file: BinaryIO, size: int) -> bytes:
    """Hex digits of the SHA-256 of the first ``size`` bytes."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()
