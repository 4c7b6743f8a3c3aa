"""Decode cameras and streams of a network with PyAV, with timeouts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ffn.data import VideoError
from ffn.data.decoding.container import ffmpeg_message, to_rgb
from ffn.limits import FRAME_PIXELS

if TYPE_CHECKING:
    import av

# What an address may open, also through others: no local files.
PROTOCOLS = "rtsp,rtsps,rtp,srtp,rtmp,rtmps,srt,udp,tcp,tls,http,https,httpproxy,crypto"
DEFAULTS = {"rtsp_transport": "tcp"}  # UDP loses packets


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is opened.

    Args:
        timeout: seconds to connect, and to wait for data.
        ffmpeg: options of FFmpeg, e.g. ``{"rtsp_transport": "udp", "video_size": "640x480"}``.

    Raises:
        ValueError: if ``timeout`` is not above 0.
    """

    timeout: float = 5.0
    ffmpeg: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout!r}; expected seconds above 0")


@dataclass(frozen=True)
class Grab:
    """A frame of a stream.

    Attributes:
        time: that the sender gave to it, in seconds; None if there is none.
        image: gives its pixels, uint8 RGB (H, W, 3).
    """

    time: float | None
    image: Callable[[], np.ndarray]


def camera_path(given: object) -> str | None:
    """The device of a camera: of ``0``, "0" and "/dev/video0" it is "/dev/video0"; else None."""
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str) and given.isdecimal():
        return f"/dev/video{given}"
    is_device = isinstance(given, str) and re.fullmatch(r"/dev/video\d+", given)
    return given if is_device else None


def open_camera(device: str, options: StreamOptions) -> Iterator[Grab]:
    """The frames of a camera, through Video4Linux.

    Raises:
        VideoError: if it cannot be opened or read.
    """
    if not sys.platform.startswith("linux"):
        raise VideoError(device, "cameras are read on Linux only; give an iterable of frames")
    if not os.path.exists(device):
        raise VideoError(device, "no such camera; `ls /dev/video*` lists them")
    return _grabs(device, options.timeout, options.ffmpeg, kind="v4l2")


def open_stream(address: str, options: StreamOptions) -> Iterator[Grab]:
    """The frames at an address.

    Raises:
        VideoError: if it cannot be opened or read, or has no video.
    """
    chosen = {**DEFAULTS, **options.ffmpeg, "protocol_whitelist": PROTOCOLS}
    return _grabs(address, options.timeout, chosen)


def _grabs(
    address: str, timeout: float, options: dict[str, str], kind: str | None = None
) -> Iterator[Grab]:
    import av

    name = without_password(address)
    try:
        container = av.open(
            address, format=kind, options=options, timeout=timeout, metadata_errors="ignore"
        )
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise VideoError(name, f"cannot be opened: {_cause(error, timeout)}") from None
    try:
        stream = container.streams.best("video")
        if stream is None or stream.codec_context is None:
            raise VideoError(name, "the stream has no video that FFmpeg decodes")
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {"max_pixels": str(FRAME_PIXELS.value)}
        yield from _decode(container, stream)
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError(name, f"interrupted: {_cause(error, timeout)}") from None
    finally:
        container.close()


def _decode(container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[Grab]:
    """The frames that decode; packets that were damaged on their way are left out."""
    import av

    with closing(container.demux(stream)) as packets:  # an open generator keeps its memory
        for packet in packets:
            try:
                frames = packet.decode()
            except av.error.InvalidDataError:
                continue
            for frame in frames:
                if not frame.is_corrupt:
                    yield Grab(frame.time, partial(to_rgb, frame))


def without_password(address: str) -> str:
    """An address without the name and the password of a user, for messages and logs.

    A password may contain @, / and ?, so that all before the last @ is left out. An @ of the query
    is left out only if what is before it cannot be a host and a port.

    >>> without_password("rtsp://admin:s/e@ret@camera/1")
    'rtsp://camera/1'
    """
    place, mark, query = address.partition("?")
    place = re.sub("://.*@", "://", place)
    if re.search(r"://[^/\[]*:\d*[^\d/]", place):  # the port is no number: this is a password
        return re.sub("://.*@", "://", address)
    return place + mark + query


def _cause(error: Exception, timeout: float) -> str:
    import av

    if isinstance(error, av.error.ExitError):  # what FFmpeg says when it is stopped
        return f"no data for {timeout:g} s"
    return ffmpeg_message(error)
