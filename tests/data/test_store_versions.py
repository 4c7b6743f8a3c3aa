"""Stores written by version 0.1 (tests/data/store_0_1) still open, resume and grow."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ffn.data import ClipStore, Record, pack

STORED = Path(__file__).parent / "store_0_1"
PATTERN = "{:05d}.png"


def pixels(clip: int, frame: int) -> np.ndarray:
    """The frames that were packed."""
    values = np.arange(6 * 8 * 3) + 50 * clip + 10 * frame
    return (values % 256).astype(np.uint8).reshape(6, 8, 3)


@pytest.fixture
def records(tmp_path: Path) -> list[Record]:
    from PIL import Image

    for clip in range(2):
        (tmp_path / f"frames/{clip}").mkdir(parents=True)
        for frame in range(2):
            image = Image.fromarray(pixels(clip, frame))
            image.save(tmp_path / f"frames/{clip}" / PATTERN.format(frame + 1))
    return [Record(str(tmp_path / f"frames/{clip}"), clip) for clip in range(2)]


def frames(store: ClipStore, clip: int) -> torch.Tensor:
    return store.open(f"frames/{clip}").read([0, 1])


def expected(clip: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([pixels(clip, 0), pixels(clip, 1)]))


def test_finished_store_opens_and_grows(records: list[Record], tmp_path: Path) -> None:
    folder = shutil.copytree(STORED / "finished", tmp_path / "s")
    store = ClipStore(folder)
    assert store.manifest.format == "raw"
    assert store.manifest.unreadable == [("frames/none", None, None, "no such file or folder")]
    assert torch.equal(frames(store, 0), expected(0))
    assert store.verify() == []

    options = {"root": tmp_path, "format": "raw", "pattern": PATTERN}
    report = pack(records, folder, append=True, **options)
    assert (report.packed, report.kept) == (1, 1)
    assert torch.equal(frames(ClipStore(folder), 1), expected(1))


def test_unfinished_store_is_resumed(records: list[Record], tmp_path: Path) -> None:
    folder = shutil.copytree(STORED / "unfinished", tmp_path / "s")
    report = pack(records, folder, root=tmp_path, format="raw", pattern=PATTERN)
    assert (report.packed, report.kept) == (1, 1)
    store = ClipStore(folder)
    assert [torch.equal(frames(store, clip), expected(clip)) for clip in range(2)] == [True, True]


def test_the_same_pack_writes_the_same_bytes(records: list[Record], tmp_path: Path) -> None:
    missing = Record(str(tmp_path / "frames/none"), 1)
    folder = tmp_path / "s"
    pack([records[0], missing], folder, root=tmp_path, format="raw", pattern=PATTERN)
    for path in (STORED / "finished").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
