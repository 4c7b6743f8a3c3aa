"""Samples of VideoDataset, against frame numbers in the pixels and the sampling rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from video_fixtures import AUGMENTATIONS

from ffn.data import (
    Preprocessing,
    Protocol,
    Record,
    TrainTransform,
    VideoDataset,
    VideoError,
    clip_indices,
    collate_eval,
    decoding,
    make_loader,
    sample_views,
)
from ffn.data.records import SharedRecords

PLAIN = Preprocessing(crop=16, resize=16)
AWKWARD = [
    Record("/videos/a.mp4", 0),
    Record("/videos/ü ñ.mp4", 7, 12),
    Record("", 1, 3, 0.0, 4.25),
    Record("/videos/\udcff.avi", 2, None, None, 1.5),  # a name that is not UTF-8
    Record("/videos/z.mp4", (0, 1_000_000), 0, 2.5, None),
]


@pytest.fixture(scope="module")
def records(write_video, write_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_video(folder / f"{i}.mp4", 30 + i) for i in range(3)]
    paths.append(write_folder(folder / "frames", 33, first=0))
    return [Record(path, label) for label, path in enumerate(paths)]


def frames_of(clip, numbers):
    """Frame numbers of a clip (C, T, H, W)."""
    assert clip.dtype == torch.uint8
    return numbers(clip.transpose(0, 1))


def equal(one, other):
    return one["label"] == other["label"] and all(
        torch.equal(one["clips"][v], other["clips"][v]) for v in one["clips"]
    )


def test_evaluation_has_the_frames_of_the_rule(records, numbers):
    dataset = VideoDataset(records, views=(12, 4, 40), preprocessing=PLAIN)
    for index, count in enumerate((30, 31, 32, 33)):
        item = dataset[index]
        assert (item["index"], item["label"], item["ok"], item["error"]) == (index, index, True, "")
        assert list(item["clips"]) == [4, 12, 40]
        for view, expected in sample_views(count, (4, 12, 40)).items():
            assert item["clips"][view].shape == (3, view, 16, 16)
            assert frames_of(item["clips"][view], numbers) == expected


@pytest.mark.parametrize("nested", [False, True])
def test_one_decode_fetches_all_views(nested, records, numbers, monkeypatch):
    reads = []

    def read(self, indices, original=decoding.PyAVDecoder.read):
        reads.append(list(indices))
        return original(self, indices)

    monkeypatch.setattr(decoding.PyAVDecoder, "read", read)
    dataset = VideoDataset(records, views=(4, 8), preprocessing=PLAIN, train=True, nested=nested)
    clips = dataset[1]["clips"]
    four, eight = (frames_of(clips[v], numbers) for v in (4, 8))
    assert reads == [sorted({*four, *eight})]
    assert (set(four) <= set(eight)) == nested


@pytest.mark.parametrize("nested", [False, True])
def test_views_have_the_numbers_of_frames_in_the_key(nested, records, numbers):
    """A view keeps its name; its clip has the frames of the rule for its number."""
    dataset = VideoDataset(
        records, views=(4, 8), preprocessing=PLAIN, train=True, nested=nested, seed=2,
        transform=TrainTransform(PLAIN, scales=[1.0]),
    )  # fmt: skip
    for index, count in enumerate((30, 31, 32, 33)):
        item = dataset[3, index, 0, {4: 3, 8: 11}]
        assert {v: clip.shape for v, clip in item["clips"].items()} == {
            4: (3, 3, 16, 16),
            8: (3, 11, 16, 16),
        }
        generator = np.random.default_rng(np.random.SeedSequence([2, 3, index, 0]))
        expected = sample_views(count, (3, 11), generator=generator, nested=nested)
        assert frames_of(item["clips"][4], numbers) == expected[3]
        assert frames_of(item["clips"][8], numbers) == expected[11]

    same = dataset[3, 0, 0, {4: 6, 8: 6}]["clips"]
    assert torch.equal(same[4], same[8])
    assert equal(dataset[3, 0], dataset[3, 0, 0, {4: 4, 8: 8}])


@pytest.mark.parametrize(("frames_kept", "decoded_again"), [(1000, 0), (65, 2), (0, 4)])
def test_cached_videos_give_the_same_samples(frames_kept, decoded_again, records, monkeypatch):
    part = [*records[:3], Record(records[0].path, 1, start=0.2, end=0.9)]
    transform = TrainTransform(PLAIN, scales=(1.0, 0.5))
    options = {"views": (4, 40), "preprocessing": PLAIN, "train": True, "transform": transform}
    plain = VideoDataset(part, **options)
    bytes_per_frame = decoding.open_video(part[0].path).read([0]).nbytes
    cached = VideoDataset(part, **options, cache_bytes=frames_kept * bytes_per_frame)
    assert all(equal(cached[0, i], plain[0, i]) for i in range(4))

    opened = []
    original = decoding.PyAVDecoder.read
    expected = [plain[1, i] for i in range(4)]
    monkeypatch.setattr(
        decoding.PyAVDecoder, "read", lambda self, i: opened.append(1) or original(self, i)
    )
    assert all(equal(cached[1, i], expected[i]) for i in range(4))
    assert len(opened) == decoded_again


def test_views_share_every_augmentation(records):
    transform = TrainTransform(PLAIN, **AUGMENTATIONS)
    options = {"views": (4, 8), "preprocessing": PLAIN, "train": True, "transform": transform}
    dataset = VideoDataset(records, nested=True, **options)
    for epoch in range(6):
        clips = dataset[epoch, 0]["clips"]
        for i in range(4):
            small = clips[4][:, i]
            assert any(torch.equal(small, clips[8][:, j]) for j in (2 * i, 2 * i + 1))


def test_varied_views_are_augmented_one_by_one(records):
    """With the draws of a sample in turn, after those of its frames."""
    transform = TrainTransform(PLAIN, **AUGMENTATIONS)
    options = {"views": (4, 8), "preprocessing": PLAIN, "train": True}
    dataset = VideoDataset(records, transform=transform, varied=True, seed=3, **options)
    generator = np.random.default_rng(np.random.SeedSequence([3, 5, 1, 0]))
    video = decoding.open_video(records[1].path)
    for view, indices in sample_views(31, (4, 8), generator=generator).items():
        expected, _ = transform(video.read(indices), 1, generator)
        assert torch.equal(dataset[5, 1]["clips"][view], expected.transpose(0, 1))


def test_sample_depends_on_seed_epoch_and_index_only(records):
    transform = TrainTransform(PLAIN, **AUGMENTATIONS)
    options = {"views": (4, 8), "preprocessing": PLAIN, "train": True, "transform": transform}
    dataset = VideoDataset(records, seed=7, **options)
    first = dataset[3, 1]
    torch.manual_seed(99)
    dataset[3, 0], dataset[4, 1]
    assert equal(dataset[3, 1], first)
    assert equal(VideoDataset(records, seed=7, **options)[3, 1], first)
    assert equal(dataset[1], dataset[0, 1])
    assert not equal(dataset[4, 1], first)
    assert not equal(dataset[3, 1, 1], first)  # another copy
    twice = VideoDataset([records[1], records[1]], **options)  # one video at two indices
    assert not equal(twice[0], twice[1])
    assert not equal(VideoDataset(records, seed=8, **options)[3, 1], first)


def test_time_range_limits_the_frames(records, numbers):
    part = Record(records[0].path, 0, start=0.4, end=0.8)  # 25 frames per second: 10 … 19
    dataset = VideoDataset([part], views=(5,), preprocessing=PLAIN)
    assert frames_of(dataset[0]["clips"][5], numbers) == [11, 13, 15, 17, 19]
    assert dataset.frame_indices(0) == (10, {5: [[1, 3, 5, 7, 9]]})


def test_refuses(records):
    other = TrainTransform(Preprocessing(crop=8, resize=16))
    for options, message in (
        ({"views": (0, 4)}, r"views \(0, 4\)"),
        ({"on_error": "ignore"}, "expected 'fail' or 'skip'"),
        ({"train": True, "transform": other}, "the preprocessing"),
        ({"train": True, "shuffle_frames": True}, "shuffle_frames"),
        ({"varied": True}, "varied needs train=True"),
        ({"nested": True, "protocol": Protocol(2, 1)}, "2x1 has several clips"),
    ):
        with pytest.raises(ValueError, match=message):
            VideoDataset(**{"records": records, "views": (4,), "preprocessing": PLAIN, **options})


def test_order_of_shuffled_clips_depends_on_seed_index_and_frames_only(records, numbers):
    def clip(views, seed=0, key=2, shuffle_frames=True):
        options = {"views": views, "shuffle_frames": shuffle_frames, "seed": seed}
        return VideoDataset(records, preprocessing=PLAIN, **options)[key]["clips"][12]

    first = frames_of(clip((12,)), numbers)
    assert sorted(first) == frames_of(clip((12,), shuffle_frames=False), numbers) != first
    assert torch.equal(clip((12,)), clip((4, 12, 40)))
    assert torch.equal(clip((12,)), clip((12,), key=(5, 2)))
    assert not torch.equal(clip((12,)), clip((12,), seed=1))
    other = frames_of(clip((12,), key=1), numbers)  # a video of another length
    assert [sorted(first).index(i) for i in first] != [sorted(other).index(i) for i in other]


@pytest.mark.parametrize(
    "options",
    [
        {"train": True, "seed": 3},
        {"train": True, "nested": True},
        {"shuffle_frames": True},
        {"protocol": Protocol(2, 3)},
        {"protocol": Protocol(2, 1), "shuffle_frames": True},
        {"train": True, "cache_bytes": 2**24},
    ],
    ids=str,
)
def test_frame_indices_are_those_of_the_sample(options, records, numbers):
    dataset = VideoDataset(records, views=(4, 9), preprocessing=PLAIN, **options)
    for key, count in ((0, 30), ((2, 1), 31), ((1, 3, 1), 33), ((1, 2, 0, {4: 5, 9: 12}), 32)):
        found, indices = dataset.frame_indices(key)
        assert found == count
        crops = dataset.protocol.crops
        for view, clip in dataset[key]["clips"].items():
            clips = clip.flatten(0, -5) if clip.ndim == 5 else clip[None]
            shown = [frames_of(one, numbers) for one in clips]
            assert shown == [frames for frames in indices[view] for _ in range(crops)]


def test_a_video_that_does_not_fit_into_the_cache_is_not_decoded_whole(records):
    """One frame tells its size, once."""
    asked = []

    class Long:
        def __len__(self):
            return 5000

        def read(self, indices):
            asked.append(len(indices))
            return torch.zeros(len(indices), 20, 20, 3, dtype=torch.uint8)

    options = {"views": (4,), "preprocessing": PLAIN, "source": lambda record: Long()}
    dataset = VideoDataset(records[:2], **options, cache_bytes=4999 * 1200)
    for _ in range(2):
        dataset[0, 0]
    assert asked == [1, 4, 4]
    asked.clear()
    dataset = VideoDataset(records[:2], **options, cache_bytes=5000 * 1200)
    for _ in range(2):
        dataset[0, 0]
    assert asked == [1, 5000]
    dataset[0, 1]  # the cache is full
    assert asked == [1, 5000, 4]


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
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
def test_samples_have_each_clip_at_each_crop(noise, sampling):
    sizes = Preprocessing(crop=16, resize=24, sampling=sampling)
    dataset = VideoDataset(noise, views=(2, 5), preprocessing=sizes, protocol=Protocol(2, 3))
    for index, record in enumerate(noise):
        clips = dataset[index]["clips"]
        for frames in (2, 5):
            assert clips[frames].shape == (6, 3, frames, 24, 24)
            for k, indices in enumerate(clip_indices(12, frames, 2, sampling)):
                pixels = decoding.open_video(record.path).read(
                    indices
                )  # the shorter side has 24 pixels
                for s, left in enumerate((0, 8, 16)):
                    by_hand = pixels.narrow(2 if index == 0 else 1, left, 24)  # the longer side
                    assert torch.equal(clips[frames][3 * k + s], by_hand.permute(3, 0, 1, 2))


def test_batches_have_the_views_of_the_first_video_first(noise):
    sizes = Preprocessing(crop=16, resize=24)
    dataset = VideoDataset(noise, views=(4,), preprocessing=sizes, protocol=Protocol(1, 3))
    batch = next(iter(make_loader(dataset, batch_size=2)))
    assert batch["clips"][4].shape == (6, 3, 4, 24, 24)
    expected = torch.cat([dataset[0]["clips"][4], dataset[1]["clips"][4]])
    assert torch.equal(batch["clips"][4], expected)
    assert batch["label"].tolist() == [0, 1]


def test_batches_of_several_labels_have_rows_of_ones_and_zeros(records):
    path = records[0].path
    several = [Record(path, (0, 2)), Record(path, ()), Record("missing.mp4", (1,))]
    options = {"views": [2], "preprocessing": PLAIN}
    with pytest.raises(ValueError, match="several labels per video; give num_classes"):
        VideoDataset(several, **options)

    data = VideoDataset(several, num_classes=3, on_error="skip", **options)
    batch = collate_eval([data[i] for i in range(3)])

    assert batch["label"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert batch["label"].dtype == torch.float32
    assert batch["ok"].tolist() == [True, True, False]


def test_records_are_restored():
    shared = SharedRecords(AWKWARD)
    assert len(shared) == 5
    assert list(shared) == AWKWARD
    assert [shared[i] for i in range(-5, 5)] == AWKWARD + AWKWARD
    assert list(SharedRecords(shared)) == AWKWARD
    with pytest.raises(IndexError):
        shared[5]


@pytest.mark.parametrize("train", [False, True])
def test_a_span_holds_the_last_frame(records, numbers, train):
    """Videos of 30 to 33 frames are read at the rate of one of 40; a longer one is refused."""
    sizes = Preprocessing(crop=16, resize=16, span=40)
    dataset = VideoDataset(records, views=(10, 20), preprocessing=sizes, train=train)
    for index, count in enumerate((30, 31, 32, 33)):
        clips = dataset[index]["clips"]
        for frames in (10, 20):
            found = frames_of(clips[frames], numbers)
            step = 40 // frames
            for place, number in enumerate(found):
                start = min(place * step, count - 1)
                assert start <= number <= min(place * step + step - 1, count - 1)
                assert train or number == min(place * step + step // 2, count - 1)
    short = Preprocessing(crop=16, resize=16, span=32)
    with pytest.raises(VideoError, match=r"33 frames; data.span is 32"):
        VideoDataset(records, views=(4,), preprocessing=short, train=train)[3]
