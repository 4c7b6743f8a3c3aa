"""The dataset of labelled videos: one decode and one transform for all views of a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffn.data.decoding import PATTERN, Video, VideoError, open_video
from ffn.data.preprocessing import Normalize, Preprocessing
from ffn.data.records import Label, Record, SharedRecords, has_several_labels
from ffn.data.sampling import Protocol, clip_indices, sample_views
from ffn.data.transforms import EvalTransform, TrainTransform
from ffn.labels import LabelKind, MultiLabel, label_kind


class VideoDataset(Dataset[dict[str, Any]]):
    """Labelled videos, each as several clips with different numbers of frames.

    A key is `(epoch, index, copy, numbers)`, `(epoch, index, copy)`, `(epoch, index)` (copy 0) or
    `index` (epoch 0); `ClipSampler` yields such keys. `numbers` are the numbers of frames of the
    views in this sample; by default, a view is its number of frames. The random draws of a sample
    depend on (seed, epoch, index, copy) only, not on worker, rank or earlier samples.

    Clips are uint8 RGB; `dataset.normalize` converts them to the network's input on the device.

    Args:
        records: The videos.
        views: Number of frames of each clip, e.g. (4, 8, 16).
        preprocessing: Sizes, normalization and sampling rule.
        train: Random frames and crops; otherwise the deterministic test variant of both.
        transform: Training only: crop, flip and augmentation; default `TrainTransform` with its
            defaults.
        protocol: Tests only: clips and crops per video and view.
        shuffle_frames: Tests only: put the frames of each clip in a random order, which depends on
            (seed, index, number of frames) only; a control of how much their order matters.
        nested: Whether smaller views are subsets of the largest: max(views) frames are decoded
            instead of up to sum(views).
        varied: Training only: crop, flip and augmentation are drawn anew for each view.
        seed: First part of the random seed of every sample.
        decoder: Decoder of video files, a key of `ffn.data.DECODERS`.
        pattern: Name of a frame inside a folder of frames.
        source: Function that opens a record, instead of `open_video`, as
            `ClipStore(...).open_record`.
        on_error: `fail` raises an error; `skip` returns zeros with `ok` False and the error.
        num_classes: Number of classes K, for records with several labels.
        labels: Kind of the labels; default: one or several classes, by the records.
        cache_bytes: Memory for decoded videos, per process. A data set that fits is decoded once
            instead of every epoch; samples are the same. The cache stops growing at the first video
            that does not fit.

    Raises:
        ValueError: if `records` or `views` is empty, or an option is unknown or has no effect.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        views: Sequence[int],
        preprocessing: Preprocessing,
        train: bool = False,
        transform: TrainTransform | None = None,
        protocol: Protocol = Protocol(),  # noqa: B008  frozen
        shuffle_frames: bool = False,
        nested: bool = False,
        varied: bool = False,
        seed: int = 0,
        decoder: str = "auto",
        pattern: str = PATTERN,
        source: Callable[[Record], Video] | None = None,
        on_error: str = "fail",
        num_classes: int | None = None,
        labels: LabelKind | None = None,
        cache_bytes: int = 0,
    ) -> None:
        if not records or not views or min(views) < 1:
            raise ValueError(
                f"{len(records)} records, views {tuple(views)}; expected at least one video, and "
                "numbers of frames, e.g. (4, 8, 16)"
            )
        if on_error not in ("fail", "skip"):
            raise ValueError(f"on_error is {on_error!r}; expected 'fail' or 'skip'")
        if train and (shuffle_frames or protocol.views > 1):
            raise ValueError(f"shuffle_frames and protocol {protocol} need train=False; omit them")
        if varied and not train:
            raise ValueError("varied needs train=True; omit it")
        if nested and protocol.clips > 1:
            raise ValueError(f"protocol {protocol} has several clips, which cannot be nested")
        self.labels = labels or label_kind(has_several_labels(records))
        if hasattr(self.labels, "target"):
            self._longest = max(len(record.labels) for record in records)
        if self.labels is MultiLabel and num_classes is None:
            raise ValueError("records have several labels per video; give num_classes")
        if transform is not None and (not train or transform.preprocessing != preprocessing):
            raise ValueError("transform needs train=True and the preprocessing of the data set")
        self.records, self.views = SharedRecords(records), tuple(sorted(set(views)))
        self._numbers = {view: view for view in self.views}
        self.preprocessing, self.train, self.protocol = preprocessing, train, protocol
        self.normalize = Normalize(preprocessing)
        self.shuffle_frames = shuffle_frames
        self.nested, self.varied, self.seed, self.on_error = nested, varied, seed, on_error
        self.num_classes = num_classes
        self.decoder, self.pattern = decoder, pattern
        self._source = source or self._open_file
        self._cache: dict[int, Tensor] = {}  # by index, uint8 (N, H, W, 3)
        self._cache_free = cache_bytes
        self._train_transform = transform or TrainTransform(preprocessing)
        self._eval_transform = EvalTransform(preprocessing, protocol.crops)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple) -> dict[str, Any]:
        """Load one sample.

        Args:
            key: Index of the record, (epoch, index), (epoch, index, copy) or
                (epoch, index, copy, numbers).

        Returns:
            `clips`: for each view a uint8 tensor (C, T, H, W), or (V, C, T, H, W) if the protocol
            has V > 1 clips and crops, the crops of the first clip first; `label`: the class index,
            or float32 (K,) with ones for the classes of several labels; `index`; `ok`: whether the
            video is readable; `error`: the error, or "".

        Raises:
            VideoError: if the video is unreadable and `on_error` is `fail`.
        """
        (epoch, index, copy), numbers = self.complete_key(key)
        record, message = self.records[index], ""
        try:
            clips, label = self._load(record, (epoch, index, copy), numbers)
        except VideoError as error:
            if self.on_error == "fail":
                advice = "set data.on_error=skip, or take the video out of the list"
                cause = f"{error.cause}; {advice} (ffn check_data finds all such videos)"
                raise VideoError(error.path, cause, error.frame) from error
            clips, label, message = self._black_clips(numbers), record.label, str(error)
        label = self._target(label)
        return {"clips": clips, "label": label, "index": index, "ok": not message, "error": message}

    def frame_indices(self, key: int | tuple) -> tuple[int, dict[int, list[list[int]]]]:
        """Frames of one sample, without reading them.

        Args:
            key: As for `__getitem__`.

        Returns:
            The number of frames of the video, and for each view the indices of the frames of its
            clips. Both count from the start of the record's time range.

        Raises:
            VideoError: if the video cannot be opened.
        """
        key, numbers = self.complete_key(key)
        count, _ = self._open(self.records[key[1]], key[1])
        indices = self._clip_indices(count, numbers, key, self._generator(key))
        return count, {view: indices[number] for view, number in numbers.items()}

    def complete_key(self, key: int | tuple) -> tuple[tuple[int, int, int], Mapping[int, int]]:
        """(epoch, index, copy) and the numbers of frames of a key."""
        epoch, index, *more = key if isinstance(key, tuple) else (0, key)
        copy, numbers = (*more, *(0, self._numbers)[len(more) :])
        return (epoch, index, copy), numbers

    def _generator(self, key: tuple[int, ...]) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self.seed, *key]))

    def _load(
        self, record: Record, key: tuple[int, int, int], numbers: Mapping[int, int]
    ) -> tuple[dict[int, Tensor], Label]:
        generator = self._generator(key)
        count, read = self._open(record, key[1])
        indices = self._clip_indices(count, numbers, key, generator)
        union = sorted({i for clips in indices.values() for clip in clips for i in clip})
        frames = read(union)
        position = {i: n for n, i in enumerate(union)}
        if self.varied:
            views = {}
            for view, number in numbers.items():
                clip = frames[[position[i] for i in indices[number][0]]]
                x, _ = self._train_transform(clip, record.label, generator)  # (T, C, H, W)
                views[view] = x.transpose(0, 1).contiguous()
            return views, record.label
        if self.train:
            frames, label = self._train_transform(frames, record.label, generator)
        else:
            frames, label = self._eval_transform(frames), record.label
        frames = frames if self.protocol.crops > 1 else frames[None]  # (crops, N, C, H, W)
        views = {}
        for view, number in numbers.items():
            clips = indices[number]
            x = frames[:, [position[i] for clip in clips for i in clip]]
            x = x.unflatten(1, (len(clips), number))  # (crops, clips, T, C, H, W)
            x = x.permute(1, 0, 3, 2, 4, 5).contiguous().flatten(0, 1)  # (V, C, T, H, W)
            views[view] = x if self.protocol.views > 1 else x[0]
        return views, label

    def _target(self, label: Label) -> int | Tensor:
        """A class index, (K,) with ones for several labels, or what another kind returns."""
        if hasattr(self.labels, "target"):
            return self.labels.target(label, self._longest)
        if not isinstance(label, tuple):
            return label
        target = torch.zeros(self.num_classes)
        target[list(label)] = 1
        return target

    def _clip_indices(
        self,
        count: int,
        numbers: Mapping[int, int],
        key: tuple[int, int, int],
        generator: np.random.Generator,
    ) -> dict[int, list[list[int]]]:
        """For each number of frames, the frame indices of its clips."""
        rule, lengths = self.preprocessing.sampling, sorted({*numbers.values()})
        last, count = count - 1, self.preprocessing.span or count
        if self.protocol.clips > 1:
            indices = {n: clip_indices(count, n, self.protocol.clips, rule) for n in lengths}
        else:
            random = generator if self.train else None
            views = sample_views(count, lengths, rule=rule, generator=random, nested=self.nested)
            indices = {n: [chosen] for n, chosen in views.items()}
        indices = {n: [[min(i, last) for i in c] for c in clips] for n, clips in indices.items()}
        if not self.shuffle_frames:
            return indices
        return {
            n: [self._generator((key[1], n)).permutation(clip).tolist() for clip in clips]
            for n, clips in indices.items()
        }

    def _open(self, record: Record, index: int) -> tuple[int, Callable[[list[int]], Tensor]]:
        """Number of frames in the record's time range, and a function that reads some of them."""
        if index in self._cache:
            return len(self._cache[index]), self._cache[index].__getitem__
        video = self._source(record)
        usable = range(len(video))
        if record.start is not None or record.end is not None:
            usable = video.between(record.start, record.end)
        if 0 < self.preprocessing.span < len(usable):
            cause = f"{len(usable)} frames; data.span is {self.preprocessing.span}. Raise it, or "
            raise VideoError(record.path, f"{cause}cut the video (start and end in the list)")
        if self._cache_free and len(usable) * video.read(usable[:1]).nbytes > self._cache_free:
            self._cache_free = 0
        if not self._cache_free:
            return len(usable), lambda indices: video.read([usable[i] for i in indices])
        self._cache[index] = frames = video.read(usable)
        self._cache_free -= frames.nbytes
        return len(frames), frames.__getitem__

    def _open_file(self, record: Record) -> Video:
        return open_video(
            record.path, decoder=self.decoder, pattern=self.pattern, frames=record.frames
        )

    def _black_clips(self, numbers: Mapping[int, int]) -> dict[int, Tensor]:
        """Clips of zeros, in the shapes of those of a readable video."""
        side = self.preprocessing.crop if self.train else self._eval_transform.side
        leading = (self.protocol.views,) if self.protocol.views > 1 else ()
        shapes = {view: (*leading, 3, number, side, side) for view, number in numbers.items()}
        return {view: torch.zeros(shape, dtype=torch.uint8) for view, shape in shapes.items()}
