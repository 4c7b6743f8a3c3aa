"""Videos as samples: one decode and one spatial transform for all views of a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, VideoError, open_video
from ffn.data.sampling import sample_views
from ffn.data.transforms import SCALES, EvalTransform, Preprocessing, TrainTransform


class VideoDataset(Dataset[dict[str, Any]]):
    """Labelled videos, each as several clips of different numbers of frames.

    A sample depends on (seed, epoch, index) alone: not on the worker or rank that makes it, nor on
    what was made before. It is asked for by `(epoch, index)`, as `ClipSampler` does, so that
    workers that live through all epochs need no message; a plain `index` means epoch 0.

    Args:
        records: The videos.
        views: Frames of each clip, as (4, 8, 16).
        preprocessing: Sizes, normalisation and sampling rule.
        train: Random frames and crops, or the test form of both.
        scales: Sides of the random crops over the shorter side; training only.
        flip: `none`, `random` or `swap`, see `TrainTransform`; training only.
        flip_pairs: Pairs of class indices for `swap`.
        nested: Smaller views are subsets of the largest: max(views) frames are decoded in place of
            sum(views).
        seed: First part of every sample's random seed.
        reader: How video files are read, one of `ffn.data.READERS`.
        pattern: Name of a frame inside a folder of frames.
        on_error: `fail` raises; `skip` returns a sample of zeros with `ok` False and the reason.
        cache_bytes: Memory for decoded videos: a set that fits is decoded once, not every epoch.
            The first video that finds no room ends the collecting. Samples are the same.

    Raises:
        ValueError: if there is no record or view, or an option is unknown.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        views: Sequence[int],
        preprocessing: Preprocessing,
        train: bool = False,
        scales: Sequence[float] = SCALES,
        flip: str = "none",
        flip_pairs: Sequence[Sequence[int]] = (),
        nested: bool = False,
        seed: int = 0,
        reader: str = "auto",
        pattern: str = PATTERN,
        on_error: str = "fail",
        cache_bytes: int = 0,
    ) -> None:
        if not records:
            raise ValueError("records is empty; expected at least one video")
        if not views or min(views) < 1:
            raise ValueError(f"views is {tuple(views)}; expected numbers of frames, as (4, 8, 16)")
        if on_error not in ("fail", "skip"):
            raise ValueError(f"on_error is {on_error!r}; expected 'fail' or 'skip'")
        if not train and flip != "none":
            raise ValueError(f"flip is {flip!r} without train; expected 'none'")
        self.records, self.views = list(records), tuple(sorted(set(views)))
        self.preprocessing, self.train = preprocessing, train
        self.nested, self.seed, self.on_error = nested, seed, on_error
        self.reader, self.pattern = reader, pattern
        self._cached: dict[int, Tensor] = {}  # by index, uint8 (N, H, W, 3)
        self._cache_room = cache_bytes
        self._train_transform = TrainTransform(
            preprocessing, scales=scales, flip=flip, flip_pairs=flip_pairs
        )
        self._eval_transform = EvalTransform(preprocessing)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        """Make one sample.

        Args:
            key: Index of the record, or (epoch, index).

        Returns:
            `clips`: for each view a float tensor (C, T, H, W); `label`; `index`; `ok`: whether the
            video could be read; `error`: why not, or "".

        Raises:
            VideoError: if the video cannot be read and `on_error` is `fail`.
        """
        epoch, index = key if isinstance(key, tuple) else (0, key)
        record, reason = self.records[index], ""
        try:
            clips, label = self._clips(record, epoch, index)
        except VideoError as error:
            if self.on_error == "fail":
                raise
            clips, label, reason = self._nothing(), record.label, str(error)
        return {"clips": clips, "label": label, "index": index, "ok": not reason, "error": reason}

    def _clips(self, record: Record, epoch: int, index: int) -> tuple[dict[int, Tensor], int]:
        generator = np.random.default_rng(np.random.SeedSequence([self.seed, epoch, index]))
        count, read = self._open(record, index)
        chosen = sample_views(
            count,
            self.views,
            rule=self.preprocessing.sampling,
            generator=generator if self.train else None,
            nested=self.nested,
        )

        union = sorted({i for indices in chosen.values() for i in indices})
        frames = read(union)
        if self.train:
            frames, label = self._train_transform(frames, record.label, generator)
        else:
            frames, label = self._eval_transform(frames), record.label
        place = {i: n for n, i in enumerate(union)}
        clips = {
            view: frames[[place[i] for i in indices]].transpose(0, 1).contiguous()  # (C, T, H, W)
            for view, indices in chosen.items()
        }
        return clips, label

    def _open(self, record: Record, index: int) -> tuple[int, Callable[[list[int]], Tensor]]:
        """Number of usable frames of a video, and what reads some of them."""
        if index in self._cached:
            return len(self._cached[index]), self._cached[index].__getitem__
        video = open_video(
            record.path, reader=self.reader, pattern=self.pattern, frames=record.frames
        )
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

    def _nothing(self) -> dict[int, Tensor]:
        side = self.preprocessing.crop
        return {view: torch.zeros(3, view, side, side) for view in self.views}
