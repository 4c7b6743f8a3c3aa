"""What a download is, against files that torch and safetensors write, whole and damaged."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from ffn.zoo.content import is_web_page, wrong_content

STATE = {"w": torch.arange(100.0)}
PAGES = [
    b"<!DOCTYPE html><html></html>",
    b"\n  <HTML><body>404</body></HTML>",
    b"\xef\xbb\xbf<!doctype html>",
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    b"<!-- moved --><html></html>",
]
NAMES = ["x.pt", "x.pth", "x.PTH", "x.pyth", "x.pth.tar", "x.safetensors", "x.pkl", "file"]


def torch_bytes(**options: object) -> bytes:
    file = io.BytesIO()
    torch.save(STATE, file, **options)
    return file.getvalue()


ZIP, LEGACY = torch_bytes(), torch_bytes(_use_new_zipfile_serialization=False)
SAFE = safetensors.torch.save(STATE)


def wrong(folder: Path, content: bytes, name: str) -> str:
    (folder / "download").write_bytes(content)
    return wrong_content(folder / "download", name)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        *((content, name) for content in (ZIP, LEGACY) for name in NAMES[:5]),
        (SAFE, "x.safetensors"),
        (pickle.dumps({"blobs": {}}, protocol=2), "x.pkl"),
        (pickle.dumps({"blobs": {}}, protocol=0), "x.pkl"),
        (b"anything", "file"),
        (b"anything", "x.bin"),
    ],
)
def test_files_as_libraries_write_them(tmp_path: Path, content: bytes, name: str) -> None:
    assert wrong(tmp_path, content, name) == ""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("page", PAGES)
def test_a_web_page_is_no_file_of_any_name(tmp_path: Path, page: bytes, name: str) -> None:
    assert wrong(tmp_path, page, name) == "it is a web page"
    assert is_web_page(tmp_path / "download")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    assert wrong(tmp_path, b"", name) == "it is empty"


@pytest.mark.parametrize("name", NAMES[:5])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": "quota"}', 'it starts with b\'{"error": "quota\'; a torch file starts with '),
        (SAFE, "it starts with"),
        (b"\x1f\x8b\x08" + ZIP, "it starts with"),
        (ZIP[:-1], "it is an incomplete zip"),
        (ZIP[:100], "it is an incomplete zip"),
    ],
)
def test_what_is_no_torch_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert wrong(tmp_path, content, name).startswith(message)


@pytest.mark.parametrize(
    "content",
    [ZIP, LEGACY, SAFE[:-1], SAFE[:50], SAFE[:5], SAFE + b"x", b'{"error": "quota"}', b"\0" * 99],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    found = wrong(tmp_path, content, "x.safetensors")
    assert found.startswith("it is not a complete safetensors file (")
