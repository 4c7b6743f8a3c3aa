"""Check that a download can be the file that its name says, and is not an error page.

A torch file is a zip, which ends with its directory, or a pickle of protocol 2 or later (torch
before 1.6). A safetensors file starts with the sizes of its tensors.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import safetensors

_START = 512  # bytes that are read
_TORCH_NAME = re.compile(r".+\.(pt|pth|pyth|pth\.tar)", flags=re.IGNORECASE)
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_PAGE_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")


def is_web_page(path: Path) -> bool:
    """Whether a file is HTML or XML, as some download links and error answers are."""
    with path.open("rb") as file:
        start = file.read(_START)
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGE_STARTS)


def wrong_content(path: Path, name: str) -> str:
    """Why a file cannot be what its name says, as a clause; empty if it can be.

    A torch zip or a safetensors file that is cut short is found, too. Files whose names do not end
    in ``.pt``, ``.pth``, ``.pyth``, ``.pth.tar`` or ``.safetensors`` can be anything but empty or a
    web page. Tensors are not read.

    Args:
        path: of the file.
        name: that it was downloaded for.
    """
    if not path.stat().st_size:
        return "it is empty"
    if is_web_page(path):
        return "it is a web page"
    if _TORCH_NAME.fullmatch(name):
        return _wrong_torch_file(path)
    if name.lower().endswith(".safetensors"):
        try:
            with safetensors.safe_open(path, "pt"):
                pass
        except safetensors.SafetensorError as error:
            return f"it is not a complete safetensors file ({error})"
    return ""


def _wrong_torch_file(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(_PICKLE):
        return ""
    if not start.startswith(_ZIP):
        return f"it starts with {start!r}; a torch file starts with {_ZIP!r} or {_PICKLE!r}"
    return "" if zipfile.is_zipfile(path) else "it is an incomplete zip"
