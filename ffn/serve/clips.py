"""Read clips of videos as a network needs them: of whole videos, and of windows of long ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ffn.data import EvalTransform, Preprocessing, VideoError, sample_views
from ffn.data.decoding import Video
from ffn.serve.inputs import Input, frame_times, open_input

READ_TOGETHER = 64  # frames of windows that are decoded at once, which bounds the memory
UNREAD = torch.empty(0)  # pixels of a clip before they are read


@dataclass(frozen=True)
class Clip:
    """A clip that was read.

    Attributes:
        name: of its video.
        pixels: uint8 RGB (C, T, H, W).
        why: so many frames.
        indices: of its frames in the video.
        decode_ms: time to decode and transform it.
        seconds: duration of the video, or of the window; None if the video has no times.
        start, end: of its window in seconds; None for the whole video.
        times: of its frames in seconds; empty if the video has no times.
    """

    name: str
    pixels: Tensor
    why: str
    indices: tuple[int, ...]
    decode_ms: float
    seconds: float | None = None
    start: float | None = None
    end: float | None = None
    times: tuple[float, ...] = ()


Choice = Callable[[int, float | None], tuple[int, str]]
"""Gives the number of input frames, and why, for the frames and seconds of a video or window."""


@dataclass(frozen=True)
class Windows:
    """Windows of a video.

    Args:
        seconds: length of a window.
        step: seconds from the start of a window to that of the next; None for half a window.
        fps: frames per second of videos without times; None if there are none.

    Raises:
        ValueError: if a number is not above 0, or the step exceeds the length, so that parts of
            the video would be in no window.
    """

    seconds: float
    step: float | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "step", "fps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        if self.step is not None and self.step > self.seconds:
            raise ValueError(
                f"step is {self.step:g} s, the window {self.seconds:g} s; expected a step of at "
                "most the window, so that windows cover the video"
            )

    def of(self, duration: float) -> Iterator[tuple[float, float]]:
        """Start and end of each window of a video, in seconds.

        They start every ``step`` seconds. The last one ends with the video and is as long as the
        others; a video of at most ``seconds`` is one window.
        """
        if duration <= self.seconds:
            yield 0.0, duration
            return
        step = self.step or self.seconds / 2
        full = math.floor((duration - self.seconds) / step + 1e-9)
        yield from ((n * step, n * step + self.seconds) for n in range(full + 1))
        if full * step + self.seconds < duration - 1e-6:
            yield duration - self.seconds, duration


@dataclass(frozen=True)
class ClipReader:
    """Reads the clips that a network needs.

    Attributes:
        preprocessing: of the network.
        pattern: file names in a folder of frames.
        choose: gives the number of frames.
    """

    preprocessing: Preprocessing
    pattern: str
    choose: Choice

    def read(self, given: Input, start: float | None = None, end: float | None = None) -> Clip:
        """The clip of a video; see :func:`read_together`."""
        return read_together([self], given, start, end)[0]

    def read_windows(self, given: Input, windows: Windows) -> Iterator[Clip]:
        """The clips of the windows of a video, in their order.

        Windows that overlap are decoded together, up to `READ_TOGETHER` frames.

        Raises:
            VideoError: as `open_input`; or the video has no times and ``fps`` is not given.
            TypeError, ValueError: as `open_input`.
        """
        with open_input(given, pattern=self.pattern) as (name, video):
            times, duration = frame_times(video, windows.fps)
            group: list[Clip] = []
            union: set[int] = set()
            for start, end in windows.of(duration):
                usable = _shown(times, start, end)
                clip = self.plan(name, usable, end - start)
                if group and len(union.union(clip.indices)) > READ_TOGETHER:
                    yield from self.fill(video, group)
                    group, union = [], set()
                group.append(replace(clip, start=start, end=end))
                union.update(clip.indices)
            yield from self.fill(video, group)

    def plan(self, name: str, usable: range, seconds: float | None) -> Clip:
        """The clip of a part of a video, whose frames have these indices, before it is read."""
        count, why = self.choose(len(usable), seconds)
        length = max(self.preprocessing.span, len(usable))
        chosen = sample_views(length, (count,), rule=self.preprocessing.sampling)[count]
        indices = tuple(usable[min(n, len(usable) - 1)] for n in chosen)
        return Clip(name, UNREAD, why, indices, 0.0, seconds)

    def fill(self, video: Video, clips: Sequence[Clip]) -> Iterator[Clip]:
        """Read planned clips of one video at once; each has the same share of the time."""
        started = time.perf_counter()
        needed = sorted({index for clip in clips for index in clip.indices})
        frames = self._transform(video.read(needed)).transpose(0, 1)  # (C, N, H, W)
        place = {index: n for n, index in enumerate(needed)}
        spent = 1000 * (time.perf_counter() - started) / len(clips)
        for clip in clips:
            pixels = frames[:, [place[index] for index in clip.indices]]
            yield replace(clip, pixels=pixels, decode_ms=spent)

    @cached_property
    def _transform(self) -> EvalTransform:
        return EvalTransform(self.preprocessing)


def read_together(
    readers: Sequence[ClipReader],
    given: Input,
    start: float | None = None,
    end: float | None = None,
) -> list[Clip]:
    """The clip of a video by each of some readers, which differ in the number of frames.

    They are decoded at once, so that each has the ``decode_ms`` of all.

    Args:
        readers: of one network.
        given: the video.
        start, end: in seconds, of the part that is used; None for the ends of the video.

    Raises:
        VideoError: as `open_input`; or the video has no frame between ``start`` and ``end``.
        TypeError, ValueError: as `open_input`.
    """
    started = time.perf_counter()
    with open_input(given, pattern=readers[0].pattern) as (name, video):
        usable, seconds, times = range(len(video)), None, None
        with suppress(VideoError):  # of a video without times
            times, seconds = frame_times(video, None)
        if start is not None or end is not None:
            usable = video.between(start, end)
            if seconds is not None:
                seconds = min(end or seconds, seconds) - (start or 0.0)
        clips = [reader.plan(name, usable, seconds) for reader in readers]
        clips = list(readers[0].fill(video, clips))
    spent = 1000 * (time.perf_counter() - started)
    shown = [() if times is None else tuple(times[[*clip.indices]].tolist()) for clip in clips]
    found = {"start": start, "end": end, "decode_ms": spent}
    return [replace(clip, times=own, **found) for clip, own in zip(clips, shown, strict=True)]


def _shown(times: np.ndarray, start: float, end: float) -> range:
    """Indices of the frames that start in [start, end), or else of the one that is shown then."""
    first, stop = np.searchsorted(times, [start - 1e-6, end - 1e-6]).tolist()
    return range(first, stop) if first < stop else range(max(first - 1, 0), max(first, 1))
