"""Clips and crops of test protocols, against the formulas of the papers and slices by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from ffn.data import (
    Preprocessing,
    Protocol,
    Record,
    VideoDataset,
    clip_indices,
    decode,
    make_loader,
    segment_center,
)


def test_names():
    assert Protocol.parse("10x3") == Protocol(clips=10, crops=3)
    assert (str(Protocol(2, 3)), Protocol(2, 3).views, str(Protocol())) == ("2x3", 6, "1x1")

    for text in ("3", "2x", "0x1", "2x5", "2x3x1", "axb"):
        with pytest.raises(ValueError, match=r"is unknown; expected CLIPSxCROPS"):
            Protocol.parse(text)


@pytest.mark.parametrize(("count", "frames"), [(1, 4), (3, 8), (16, 4), (37, 16), (300, 8)])
def test_segment_clips_are_tsms(count, frames):
    tick = count / frames
    center = [int(tick / 2.0 + tick * x) for x in range(frames)]
    start = [int(tick * x) for x in range(frames)]
    assert clip_indices(count, frames, 1, "segment") == [segment_center(count, frames)] == [center]
    assert clip_indices(count, frames, 2, "segment") == [center, start]
    for clips in (3, 5, 10):
        found = clip_indices(count, frames, clips, "segment")
        assert found[0] == center
        offsets = sorted((0.5 + k / clips) % 1 for k in range(clips))
        expected = [[int(tick * (offset + x) + 1e-9) for x in range(frames)] for offset in offsets]
        assert sorted(found) == expected
        assert all(0 <= i < count for clip in found for i in clip)


@pytest.mark.parametrize("clips", [1, 2, 3])
def test_interval_clips_are_slowfasts(clips):
    count, frames = 83, 8
    seg = float(count - 1) / frames
    for k, found in enumerate(clip_indices(count, frames, clips, "interval")):
        offset = int(seg / (clips + 1) * (k + 1))
        assert found == [int(np.round(seg * i)) + offset for i in range(frames)]


def test_dense_clips_are_spread_over_the_video():
    found = clip_indices(164, 4, 10, "dense")
    starts = np.linspace(0, 100, num=10, dtype=int)
    assert found == [[start + 16 * i for i in range(4)] for start in starts.tolist()]


def test_clip_indices_refuses():
    with pytest.raises(ValueError, match="sampling 'all' is unknown"):
        clip_indices(10, 4, 2, "all")
    with pytest.raises(ValueError, match="0 clips of 4 frames"):
        clip_indices(10, 4, 0, "segment")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two videos of noise, as folders: wide and high."""
    random = np.random.default_rng(0)
    made = []
    for label, size in enumerate([(24, 40), (40, 24)]):
        folder = tmp_path_factory.mktemp("video")
        for i in range(12):
            pixels = random.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i + 1:05d}.jpg")
        made.append(Record(str(folder), label))
    return made


@pytest.mark.parametrize("sampling", ["segment", "interval"])
def test_samples_have_each_clip_at_each_crop(records, sampling):
    sizes = Preprocessing(crop=16, resize=24, sampling=sampling)
    dataset = VideoDataset(records, views=(2, 5), preprocessing=sizes, protocol=Protocol(2, 3))
    for index, record in enumerate(records):
        clips = dataset[index]["clips"]
        for frames in (2, 5):
            assert clips[frames].shape == (6, 3, frames, 24, 24)
            for k, indices in enumerate(clip_indices(12, frames, 2, sampling)):
                pixels = decode(record.path, indices)  # the shorter side has 24 pixels
                for s, left in enumerate((0, 8, 16)):
                    by_hand = (
                        pixels[:, :, left : left + 24]
                        if index == 0
                        else pixels[:, left : left + 24]
                    ).permute(3, 0, 1, 2)
                    assert torch.equal(clips[frames][3 * k + s], by_hand)


def test_batches_have_the_views_of_the_first_video_first(records):
    sizes = Preprocessing(crop=16, resize=24)
    dataset = VideoDataset(records, views=(4,), preprocessing=sizes, protocol=Protocol(1, 3))
    batch = next(iter(make_loader(dataset, batch_size=2)))
    assert batch["clips"][4].shape == (6, 3, 4, 24, 24)
    expected = torch.cat([dataset[0]["clips"][4], dataset[1]["clips"][4]])
    assert torch.equal(batch["clips"][4], expected)
    assert batch["label"].tolist() == [0, 1]
