"""Sources of live prediction: files played as if live, streams, and iterables of frames."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

import numpy as np
from torch import Tensor

from ffn.data.decoding import PATTERN
from ffn.serve.inputs import Input, frame_times, frames_in_order, is_address, open_input
from ffn.serve.live.streams import (
    Arrival,
    Pace,
    StreamSource,
    open_camera,
    open_stream,
    without_password,
)


class Source(Protocol):
    """What live prediction reads.

    Attributes:
        name: For people.
    """

    name: str

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames, each at its time; ends with the source or when ``pace`` is closed.

        Raises:
            VideoError: if it cannot be read.
        """


class FileSource:
    """A video at its own rate, as if it were live. A frame is given when its time has come.

    Args:
        given: The video, as for a predictor.
        speed: Factor of its rate.
        repeat: Play it again and again.
        fps: Frames per second of a video without times.
        pattern: File names in a folder of frames.
    """

    def __init__(
        self,
        given: Input,
        *,
        speed: float = 1.0,
        repeat: bool = False,
        fps: float | None = None,
        pattern: str = PATTERN,
    ) -> None:
        is_path = isinstance(given, (str, os.PathLike))
        self.name = os.fspath(given) if is_path else "video in memory"
        self._given, self._speed, self._repeat = given, speed, repeat
        self._fps, self._pattern = fps, pattern

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames, each when it is due."""
        with open_input(self._given, pattern=self._pattern) as (_, video):
            times, duration = frame_times(video, self._fps)
            began, offset, goes_on = pace.now(), 0.0, True
            while goes_on:
                for index, image in frames_in_order(video, range(len(video))):
                    time = offset + float(times[index])
                    due = began + time / self._speed
                    if not pace.sleep(due - pace.now()):
                        return
                    yield Arrival(time, due, lambda image=image: image)
                offset, goes_on = offset + duration, self._repeat


class IterableSource:
    """Frames of an iterable, which are live when it gives them.

    Args:
        pairs: Time in seconds, ascending, and frame, uint8 RGB (H, W, 3), an array or a tensor.
    """

    def __init__(self, pairs: Iterable[tuple[float, np.ndarray | Tensor]]) -> None:
        self.name, self._pairs = type(pairs).__name__, pairs

    def frames(self, pace: Pace) -> Iterator[Arrival]:
        """The frames as they come.

        Raises:
            TypeError: if a frame is not uint8.
            ValueError: if it has another shape, or its time is not above that of the one before.
        """
        first = last = None
        for time, frame in self._pairs:
            image = _checked(frame)
            first = time if first is None else first
            if last is not None and not time > last:
                raise ValueError(
                    f"a frame has the time {time}, the one before {last}; expected ascending times"
                )
            last = time
            yield Arrival(float(time - first), pace.now(), lambda image=image: image)
            if not pace.sleep(0):
                return


def _checked(frame: np.ndarray | Tensor) -> np.ndarray:
    image = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else np.asarray(frame)
    if image.dtype != np.uint8:
        raise TypeError(f"a frame is {image.dtype}; expected uint8, 0 to 255")
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"a frame has shape {image.shape}; expected (H, W, 3)")
    return image


def open_source(
    given: object,
    *,
    speed: float | None = None,
    repeat: bool = False,
    fps: float | None = None,
    attempts: int | None = None,
    timeout: float = 5.0,
    options: Mapping[str, str] | None = None,
    pattern: str = PATTERN,
) -> Source:
    """The source for what a user names.

    Args:
        given: A camera, as ``0`` or ``/dev/video0``; an address, as ``rtsp://host/stream``; the
            path of a video file or a folder of frames; frames in memory; or an iterable of pairs
            (time in seconds, uint8 frame (H, W, 3)).
        speed: Of files: factor of their rate; default: 1.
        repeat: Of files: play them again and again.
        fps: Of files without times: frames per second.
        attempts: Of cameras and addresses: number of attempts to connect again after an
            interruption; None: any number.
        timeout: Of cameras and addresses: seconds to connect, and to wait for data.
        options: Of cameras and addresses: options of FFmpeg, as ``{"rtsp_transport": "udp"}``. An
            option that the format does not have has no effect.
        pattern: File names in a folder of frames.

    Raises:
        ValueError: if an option does not belong to the source, or is out of its range.
        TypeError: if ``given`` is none of these.
    """
    camera = camera_path(given)
    is_stream = camera is not None or (isinstance(given, str) and is_address(given))
    is_file = not is_stream and isinstance(given, (str, os.PathLike, bytes, np.ndarray, Tensor))
    of_files = {"speed": speed, "repeat": repeat or None, "fps": fps}
    of_streams = {"attempts": attempts, "options": options or None}
    foreign = ({} if is_file else of_files) | ({} if is_stream else of_streams)
    for key, value in foreign.items():
        if value is not None:
            owner = "a video file" if key in of_files else "a camera or an address"
            raise ValueError(f"{key} is {value!r}; it is only for {owner}")
    for key, value in {"speed": speed, "fps": fps, "timeout": timeout}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{key} is {value!r}; expected a number above 0")
    if is_file:
        return FileSource(given, speed=speed or 1.0, repeat=repeat, fps=fps, pattern=pattern)
    if camera is not None:
        connect = partial(open_camera, camera, timeout, options or {})
        return StreamSource(camera, connect, attempts=attempts)
    if is_stream:
        connect = partial(open_stream, given, timeout, options or {})
        return StreamSource(without_password(given), connect, attempts=attempts)
    if hasattr(given, "frames") and hasattr(given, "name"):
        return given
    if isinstance(given, Iterable):
        return IterableSource(given)
    raise TypeError(
        f"the source is a {type(given).__name__}; expected a camera (0, /dev/video0), an address "
        "(rtsp://host/stream), a video file, or an iterable of (time, uint8 frame (H, W, 3))"
    )


def camera_path(given: object) -> str | None:
    """The device of a camera: of ``0``, "0" and "/dev/video0" it is "/dev/video0"; else None."""
    text = str(given) if isinstance(given, (int, str, os.PathLike)) else ""
    if text.isdecimal():
        return f"/dev/video{text}"
    return text if re.fullmatch(r"/dev/video\d+", text) else None
