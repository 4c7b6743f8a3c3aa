"""Videos as samples: one decode and one spatial transform for all views of a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, Video, VideoError, open_video
from ffn.data.packed import PackedRecords
from ffn.data.preprocessing import Preprocessing
from ffn.data.protocols import Protocol, clip_indices
from ffn.data.sampling import sample_views
from ffn.data.transforms import EvalTransform, TrainTransform
from ffn.data.watch import Desks


class VideoDataset(Dataset[dict[str, Any]]):
    """Labelled videos, each as several clips of different numbers of frames.

    A sample depends on (seed, epoch, index, copy) alone: not on the worker or rank that makes it,
    nor on what was made before. It is asked for by `(epoch, index)`, or `(epoch, index, copy)`
    where a video comes several times per epoch, as `ClipSampler` does, so that workers that live
    through all epochs need no message; a plain `index` means epoch 0, no copy means copy 0.

    Clips are uint8 RGB: `ffn.data.Normalise(dataset.preprocessing)` makes the network's input of
    them, on the device.

    Args:
        records: The videos.
        views: Frames of each clip, as (4, 8, 16).
        preprocessing: Sizes, normalisation and sampling rule.
        train: Random frames and crops, or the test form of both.
        transform: Crop, flip and augmentation of training; by default `TrainTransform` as it
            stands.
        protocol: Clips and crops per video and view; tests only.
        nested: Smaller views are subsets of the largest: max(views) frames are decoded in place of
            sum(views).
        seed: First part of every sample's random seed.
        decoder: How video files are read, one of `ffn.data.READERS`.
        pattern: Name of a frame inside a folder of frames.
        source: What opens a record in place of `open_video`, as `ClipStore(...).open_record`.
        on_error: `fail` raises; `skip` returns a sample of zeros with `ok` False and the reason.
        cache_bytes: Memory for decoded videos: a set that fits is decoded once, not every epoch.
            The first video that finds no room ends the collecting. Samples are the same.

    Raises:
        ValueError: if there is no record or view, or an option is unknown or without effect.
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
        nested: bool = False,
        seed: int = 0,
        decoder: str = "auto",
        pattern: str = PATTERN,
        source: Callable[[Record], Video] | None = None,
        on_error: str = "fail",
        cache_bytes: int = 0,
    ) -> None:
        if not records:
            raise ValueError("records is empty; expected at least one video")
        if not views or min(views) < 1:
            raise ValueError(f"views is {tuple(views)}; expected numbers of frames, as (4, 8, 16)")
        if on_error not in ("fail", "skip"):
            raise ValueError(f"on_error is {on_error!r}; expected 'fail' or 'skip'")
        if not train and transform is not None:
            raise ValueError("transform has an effect with train alone; leave it out")
        if train and protocol.views > 1:
            raise ValueError(f"protocol {protocol} has an effect without train alone; leave it out")
        if nested and protocol.clips > 1:
            raise ValueError(f"protocol {protocol} has several clips, which are not nested")
        transform = TrainTransform(preprocessing) if transform is None else transform
        if transform.preprocessing != preprocessing:
            raise ValueError("transform was made for another preprocessing; give both the same")
        self.records, self.views = PackedRecords(records), tuple(sorted(set(views)))
        self.desks: Desks | None = None  # where items note themselves; a watched loader sets it
        self.preprocessing, self.train, self.protocol = preprocessing, train, protocol
        self.nested, self.seed, self.on_error = nested, seed, on_error
        self.decoder, self.pattern = decoder, pattern
        self._source = source or self._open_file
        self._cached: dict[int, Tensor] = {}  # by index, uint8 (N, H, W, 3)
        self._cache_room = cache_bytes
        self._train_transform = transform
        self._eval_transform = EvalTransform(preprocessing, protocol.crops)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int] | tuple[int, int, int]) -> dict[str, Any]:
        """Make one sample.

        Args:
            key: Index of the record, (epoch, index) or (epoch, index, copy).

        Returns:
            `clips`: for each view a uint8 tensor (C, T, H, W), or, of a protocol with V > 1 clips
            and crops, (V, C, T, H, W), the crops of the first clip first; `label`; `index`; `ok`:
            whether the video could be read; `error`: why not, or "".

        Raises:
            VideoError: if the video cannot be read and `on_error` is `fail`.
        """
        epoch, index, copy = (*key, 0)[:3] if isinstance(key, tuple) else (0, key, 0)
        record, reason = self.records[index], ""
        if self.desks is not None:
            self.desks.take(index)
        try:
            clips, label = self._clips(record, epoch, index, copy)
        except VideoError as error:
            if self.on_error == "fail":
                raise
            clips, label, reason = self._nothing(), record.label, str(error)
        if self.desks is not None:
            self.desks.clear()
        return {"clips": clips, "label": label, "index": index, "ok": not reason, "error": reason}

    def _clips(
        self, record: Record, epoch: int, index: int, copy: int
    ) -> tuple[dict[int, Tensor], int]:
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, epoch, index, copy]))
        count, read = self._open(record, index)
        chosen = self._indices(count, generator)

        union = sorted({i for clips in chosen.values() for clip in clips for i in clip})
        frames = read(union)
        if self.train:
            frames, label = self._train_transform(frames, record.label, generator)
        else:
            frames, label = self._eval_transform(frames), record.label
        frames = frames if self.protocol.crops > 1 else frames[None]  # (crops, N, C, H, W)
        place = {i: n for n, i in enumerate(union)}
        found = {}
        for view, clips in chosen.items():
            x = frames[:, [place[i] for clip in clips for i in clip]]
            x = x.unflatten(1, (len(clips), view))  # (crops, clips, T, C, H, W)
            x = x.permute(1, 0, 3, 2, 4, 5).contiguous().flatten(0, 1)  # (V, C, T, H, W)
            found[view] = x if self.protocol.views > 1 else x[0]
        return found, label

    def _indices(self, count: int, generator: np.random.Generator) -> dict[int, list[list[int]]]:
        """Per view the frames of its clips."""
        rule = self.preprocessing.sampling
        if self.protocol.clips > 1:
            return {v: clip_indices(count, v, self.protocol.clips, rule) for v in self.views}
        random = generator if self.train else None
        chosen = sample_views(count, self.views, rule=rule, generator=random, nested=self.nested)
        return {view: [indices] for view, indices in chosen.items()}

    def _open(self, record: Record, index: int) -> tuple[int, Callable[[list[int]], Tensor]]:
        """Number of usable frames of a video, and what reads some of them."""
        if index in self._cached:
            return len(self._cached[index]), self._cached[index].__getitem__
        video = self._source(record)
        usable = range(len(video))
        if record.start is not None or record.end is not None:
            usable = video.between(record.start, record.end)
        if self._cache_room <= 0:
            return len(usable), lambda chosen: video.read([usable[i] for i in chosen])

        frames = video.read(usable)
        self._cache_room -= frames.nbytes
        if self._cache_room >= 0:
            self._cached[index] = frames
        return len(frames), frames.__getitem__

    def _open_file(self, record: Record) -> Video:
        return open_video(
            record.path, decoder=self.decoder, pattern=self.pattern, frames=record.frames
        )

    def _nothing(self) -> dict[int, Tensor]:
        """Black clips of the sizes that those of a readable video would have."""
        side = self.preprocessing.crop if self.train else self._eval_transform.side
        several = (self.protocol.views,) if self.protocol.views > 1 else ()
        shapes = {view: (*several, 3, view, side, side) for view in self.views}
        return {view: torch.zeros(shape, dtype=torch.uint8) for view, shape in shapes.items()}
