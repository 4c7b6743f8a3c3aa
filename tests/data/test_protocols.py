"""Samples and batches of test protocols, against slices by hand."""

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
    make_loader,
    open_video,
)


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
                pixels = open_video(record.path).read(indices)  # the shorter side has 24 pixels
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
