"""Read clips of videos as a network needs them: of whole videos, and of windows of long ones."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ffn.data import EvalTransform, Preprocessing, VideoError, sample_views
from ffn.data.decoding import Video
from ffn.serve.inputs import Input, frame_times, open_input

READ_TOGETHER = 64  # frames of windows that are decoded at once, which bounds the memory
MAX_WINDOWS = 1_000_000  # of a video


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
    """

    name: str
    pixels: Tensor
    why: str
    indices: tuple[int, ...]
    decode_ms: float
    seconds: float | None = None
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True)
class Part:
    """A video or a window of it, for which a number of frames is chosen.

    Attributes:
        name: e.g. "video" or "window", for messages.
        frames: number of frames.
        seconds: duration; None if the video has no times.
    """

    name: str
    frames: int
    seconds: float | None


Choice = Callable[[Part], tuple[int, str]]
"""Gives the number of input frames for a part of a video, and why."""


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
        for name, value in (("seconds", self.seconds), ("step", self.step), ("fps", self.fps)):
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not (name != "seconds" and value is None) and not (number and 0 < value < math.inf):
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        if self.step is None:
            object.__setattr__(self, "step", self.seconds / 2)
        if self.step > self.seconds:
            raise ValueError(
                f"step is {self.step:g} s, the window {self.seconds:g} s; expected a step of at "
                "most the window, so that windows cover the video"
            )

    def of(self, duration: float) -> list[tuple[float, float]]:
        """Start and end of each window of a video, in seconds.

        They start every ``step`` seconds. The last one ends with the video and is as long as the
        others; a video of at most ``seconds`` is one window.
        """
        if duration <= self.seconds:
            return [(0.0, duration)]
        full = math.floor((duration - self.seconds) / self.step + 1e-9) + 1
        if full > MAX_WINDOWS:
            raise ValueError(
                f"{duration:g} s have {full:,} windows with a step of {self.step:g} s; at most "
                f"{MAX_WINDOWS:,} are allowed"
            )
        windows = [(n * self.step, n * self.step + self.seconds) for n in range(full)]
        if windows[-1][1] < duration - 1e-6:
            windows.append((duration - self.seconds, duration))
        return windows


@dataclass(frozen=True)
class _Window:
    """A window and its input frames."""

    start: float
    end: float
    indices: tuple[int, ...]
    why: str


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
        """The clip of a video.

        Args:
            given: the video.
            start, end: in seconds, of the part that is used; None for the ends of the video.

        Raises:
            VideoError: as `open_input`; or the video has no frame between ``start`` and ``end``.
            TypeError, ValueError: as `open_input`.
        """
        started = time.perf_counter()
        with open_input(given, pattern=self.pattern) as (name, video):
            usable, seconds, part = range(len(video)), duration_of(video), "video"
            if start is not None or end is not None:
                usable, part = video.between(start, end), "part of the video"
                if seconds is not None:
                    seconds = min(end or seconds, seconds) - (start or 0.0)
            indices, why = self._sample(Part(part, len(usable), seconds))
            indices = tuple(usable[index] for index in indices)
            pixels = self._pixels(video.read(indices))
        spent = 1000 * (time.perf_counter() - started)
        return Clip(name, pixels, why, indices, spent, seconds, start, end)

    def read_windows(self, given: Input, windows: Windows) -> Iterator[Clip]:
        """The clips of the windows of a video, in their order.

        Windows that overlap are decoded together, up to `READ_TOGETHER` frames.

        Raises:
            VideoError: as `open_input`; or the video has no times and ``fps`` is not given.
            TypeError, ValueError: as `open_input`.
        """
        with open_input(given, pattern=self.pattern) as (name, video):
            times, duration = frame_times(video, windows.fps)
            planned = (self._plan(times, *window) for window in windows.of(duration))
            group: list[_Window] = []
            union: set[int] = set()
            for window in planned:
                if group and len(union.union(window.indices)) > READ_TOGETHER:
                    yield from self._read_group(name, video, group)
                    group, union = [], set()
                group.append(window)
                union.update(window.indices)
            yield from self._read_group(name, video, group)

    def _plan(self, times: np.ndarray, start: float, end: float) -> _Window:
        usable = _shown(times, start, end)
        indices, why = self._sample(Part("window", len(usable), end - start))
        return _Window(start, end, tuple(usable[index] for index in indices), why)

    def _read_group(self, name: str, video: Video, group: Sequence[_Window]) -> Iterator[Clip]:
        """The clips of several windows, decoded at once."""
        started = time.perf_counter()
        needed = sorted({index for window in group for index in window.indices})
        frames = self._pixels(video.read(needed))
        place = {index: n for n, index in enumerate(needed)}
        spent = 1000 * (time.perf_counter() - started) / len(group)
        for window in group:
            pixels = frames[:, [place[index] for index in window.indices]]
            start, end = window.start, window.end
            indices, seconds = window.indices, end - start
            yield Clip(name, pixels, window.why, indices, spent, seconds, start, end)

    def _pixels(self, frames: Tensor) -> Tensor:
        """Transformed frames (C, N, H, W) of uint8 RGB (N, H, W, 3)."""
        return self._transform(frames).transpose(0, 1)

    def _sample(self, part: Part) -> tuple[list[int], str]:
        """Indices of the input frames in a part of a video, and why so many."""
        count, why = self.choose(part)
        rule = self.preprocessing.sampling
        return sample_views(part.frames, (count,), rule=rule)[count], why

    @cached_property
    def _transform(self) -> EvalTransform:
        return EvalTransform(self.preprocessing)


def duration_of(video: Video) -> float | None:
    """Duration in seconds; None if the video has no times."""
    try:
        return frame_times(video, None)[1]
    except VideoError:
        return None


def _shown(times: np.ndarray, start: float, end: float) -> range:
    """Indices of the frames that start in [start, end), or else of the one that is shown then."""
    first, stop = np.searchsorted(times, [start - 1e-6, end - 1e-6]).tolist()
    return range(first, stop) if first < stop else range(max(first - 1, 0), max(first, 1))
