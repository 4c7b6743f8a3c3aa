"""The reading benchmark opens and reads what its variants describe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ffn.benchmarks import reading
from ffn.benchmarks.formats import VideoFormat, converted, generated_videos, listed_videos
from ffn.data import Preprocessing, Record, probe


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> VideoFormat:
    folder = tmp_path_factory.mktemp("videos") / "gop4"
    return generated_videos(folder, number=3, short_side=32, frames=10, gop=4)


def counting(opened: list[str], real: Callable[[Record], Any]) -> Callable[[Record], Any]:
    def open_counted(record: Record) -> Any:
        opened.append(record.path)
        return real(record)

    return open_counted


def test_videos_are_opened_once_for_all_views_or_once_per_view(videos: VideoFormat) -> None:
    opened: list[str] = []
    counted = replace(videos, open=counting(opened, videos.open))

    comparison = reading.compare_views(
        counted, [2, 4, 8], Preprocessing(crop=28, resize=32), rounds=2
    )

    # Three videos, a warm-up and two rounds; opened 1 + 1 + 3 times for three views.
    assert len(opened) == 3 * 3 * (1 + 1 + 3)
    assert len(set(opened)) == 3
    assert comparison.title == "views 2, 4, 8 of 28 px from 3 videos, mp4, GOP 4; CPU time"
    assert [variant.items for variant in comparison.variants] == [3, 3, 3]


def test_generated_videos_have_the_given_size_length_and_key_frames(videos: VideoFormat) -> None:
    import av

    assert [record.label for record in videos.records] == [0, 0, 0]
    sizes = [Path(record.path).stat().st_size for record in videos.records]
    assert videos.mib == sum(sizes) / 3 / 2**20
    for record in videos.records:
        assert probe(record.path).frames == 10
        with av.open(record.path) as container:
            stream = container.streams.video[0]
            assert (stream.height, stream.width) == (32, 42)
            keys = [bool(packet.is_keyframe) for packet in container.demux(stream) if packet.size]
        assert sum(keys) == 3  # of 10 frames in groups of 4


def test_formats_hold_the_same_frames(videos: VideoFormat, tmp_path: Path) -> None:
    images, jpeg, raw = converted(videos, tmp_path, short_side=32)

    assert [one.name for one in (images, jpeg, raw)] == ["JPEG files", "store, JPEG", "store, raw"]
    for number, record in enumerate(videos.records):
        original = videos.open(record).read([0, 9]).float()
        assert (raw.open(raw.records[number]).read([0, 9]) == original).all()
        for other in (images, jpeg):
            frames = other.open(other.records[number]).read([0, 9]).float()
            assert (frames - original).abs().mean() < 6
    written = sum(file.stat().st_size for file in (tmp_path / "images").rglob("*.jpg"))
    assert images.mib == written / 3 / 2**20


def test_folders_of_frames_have_the_size_of_their_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 40, 3), dtype=np.uint8)
    for label in ("a", "b"):
        folder = tmp_path / label / "video"
        folder.mkdir(parents=True)
        for i, frame in enumerate(pixels):
            Image.fromarray(frame).save(folder / f"{i + 1:05d}.jpg")

    videos = listed_videos(tmp_path, None, limit=9)

    assert len(videos.records) == 2
    written = sum(file.stat().st_size for file in tmp_path.rglob("*.jpg"))
    assert videos.mib == pytest.approx(written / 2 / 2**20)


def test_frames_are_read_within_the_time_range_of_a_record() -> None:
    """Frames 3 to 6 of ten lie in the range; the others are never read."""
    read: list[int] = []

    class Video:
        def __len__(self) -> int:
            return 10

        def between(self, start: float | None, end: float | None) -> range:
            assert (start, end) == (0.3, 0.7)
            return range(3, 7)

        def read(self, indices: list[int]) -> None:
            read.extend(indices)

    record = Record("video.mp4", 0, start=0.3, end=0.7)
    run = reading._reads(SimpleNamespace(records=[record], open=lambda _: Video()), frames=4)

    for _ in range(20):
        run()

    assert set(read) == {3, 4, 5, 6}
