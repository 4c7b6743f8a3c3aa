"""Frame indices, against the reference code and the properties of each rule."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from ffn.data import sampling
from ffn.data.sampling import (
    RULES,
    Protocol,
    clip_indices,
    dense,
    sample_views,
    segment_center,
    segment_random,
)

# Measured on the original FFN-pytorch code: its test rule of the 2-D networks, ...
CENTER = {
    (7, 4): [0, 2, 4, 6],
    (7, 8): [0, 1, 2, 3, 3, 4, 5, 6],
    (7, 10): [0, 1, 1, 2, 3, 3, 4, 5, 5, 6],
    (17, 6): [1, 4, 7, 9, 12, 15],
    (17, 10): [0, 2, 4, 5, 7, 9, 11, 12, 14, 16],
    (16, 12): [0, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 15],
}


def test_segment_center_equals_reference():
    for (num_frames, frames), indices in CENTER.items():
        assert segment_center(num_frames, frames) == indices


def test_examples_in_docstrings():
    result = doctest.testmod(sampling)
    assert result.attempted >= 11
    assert result.failed == 0


@pytest.mark.parametrize("rule", RULES)
def test_indices_ascend_within_the_video(rule):
    rng = np.random.default_rng(0)
    for num_frames in [*range(1, 40), 63, 64, 65, 100, 301]:
        for frames in range(1, 65):
            clips = clip_indices(num_frames, frames, 3, rule)
            clips += sample_views(num_frames, [frames], rule=rule, generator=rng).values()
            for indices in clips:
                assert len(indices) == frames
                assert indices == sorted(indices)
                assert 0 <= indices[0] <= indices[-1] < num_frames
                assert all(type(i) is int for i in indices)


@pytest.mark.parametrize("generator", [None, np.random.default_rng(1)])
def test_short_video_repeats_evenly(generator):
    for num_frames, frames in ((2, 16), (3, 8), (4, 16), (5, 12), (7, 8)):
        for rule in ("segment", "dense"):
            views = sample_views(num_frames, [frames], rule=rule, generator=generator)
            times = np.bincount(views[frames], minlength=num_frames)
            assert times.min() >= 1
            assert times.max() - times.min() <= 1


@pytest.mark.parametrize(("num_frames", "frames"), [(10, 4), (33, 8), (47, 16), (8, 8)])
def test_segment_random_draws_every_frame_of_its_segment(num_frames, frames):
    rng = np.random.default_rng(0)
    draws = np.array([segment_random(num_frames, frames, rng) for _ in range(400)])
    for i in range(frames):
        segment = range(num_frames * i // frames, num_frames * (i + 1) // frames)
        assert set(draws[:, i]) == set(segment)


@pytest.mark.parametrize(
    ("num_frames", "frames", "clips"),
    [  # reference: starts linspace(0, n - 64, 10), stride 64 // s; first, second and last clip
        (75, 4, {0: [0, 16, 32, 48], 1: [1, 17, 33, 49], 9: [11, 27, 43, 59]}),
        (100, 8, {0: [*range(0, 64, 8)], 1: [*range(4, 68, 8)], 9: [*range(36, 100, 8)]}),
        (300, 4, {0: [0, 16, 32, 48], 1: [26, 42, 58, 74], 9: [236, 252, 268, 284]}),
    ],
)
def test_dense_clips_equal_reference(num_frames, frames, clips):
    made = clip_indices(num_frames, frames, 10, "dense")
    assert len(made) == 10
    assert {i: made[i] for i in clips} == clips


def test_dense_start_draws_first_and_last_window():
    rng = np.random.default_rng(0)
    for num_frames, starts in ((70, set(range(7))), (64, {0})):
        clips = (sample_views(num_frames, [4], rule="dense", generator=rng) for _ in range(300))
        assert {clip[4][0] for clip in clips} == starts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("train", [False, True])
def test_nested_views_take_one_frame_per_part_of_the_largest(rule, train):
    generator = np.random.default_rng(0) if train else None
    views = sample_views(150, (4, 8, 16), rule=rule, generator=generator, nested=True)
    assert [len(views[v]) for v in (4, 8, 16)] == [4, 8, 16]
    for view in (4, 8):
        size = 16 // view
        for i, index in enumerate(views[view]):
            assert index in views[16][size * i : size * (i + 1)]


def test_dense_views_share_one_window_and_others_are_independent():
    views = sample_views(150, (4, 8, 16), generator=np.random.default_rng(0))
    assert len(set(views[4]) | set(views[8]) | set(views[16])) > 16
    views = sample_views(300, (4, 8, 16), rule="dense", generator=np.random.default_rng(0))
    assert views[4][0] == views[8][0] == views[16][0] > 0
    assert views[4] == views[16][::4]


def test_test_variants_are_the_documented_rules():
    assert sample_views(100, (8,))[8] == segment_center(100, 8)
    assert sample_views(100, (8,), rule="interval")[8] == clip_indices(100, 8, 1, "interval")[0]
    assert sample_views(100, (8,), rule="dense")[8] == dense(100, 8, start=18)


def test_errors_name_the_accepted_values():
    for call, message in (
        (lambda: segment_center(0, 4), "the video has 0 frames"),
        (lambda: clip_indices(10, 4, 0, "segment"), "there are 0 clips"),
        (lambda: dense(100, 65, 0), "at most 64 frames; got 65"),
        (lambda: sample_views(10, (4,), rule="center"), "'center' is unknown.*segment"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


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
