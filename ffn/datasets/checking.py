"""Decode videos to find out which can be trusted, each in a process of its own and in bounded time.

A broken file may raise, hang or end the process that reads it; here each of these is a finding, and
the next file gets a fresh process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, VideoError, open_video, probe
from ffn.data.workers import Broken, work

SHORT = 0.8  # a video shown for less than this part of what its header says is reported as short


@dataclass(frozen=True)
class Finding:
    """What became of one video.

    Attributes:
        index: Of the record.
        status: `ok`; `count`, it decodes and has another number of frames than is listed; `short`,
            it decodes and ends long before the duration of its header; `bad`, it does not decode.
        cause: What is wrong, or "".
        frames: Frames that it shows; None if that is not known.
        seconds: Time that it took; None if its process ended or was ended.
    """

    index: int
    status: str
    cause: str
    frames: int | None
    seconds: float | None

    @property
    def usable(self) -> bool:
        """Whether all frames that were asked for decode."""
        return self.status != "bad"


def check_videos(
    records: Sequence[Record],
    *,
    frames: int | None = None,
    decoder: str = "auto",
    pattern: str = PATTERN,
    workers: int = 1,
    timeout: float = 60.0,
) -> Iterator[Finding]:
    """Decode each video.

    Args:
        records: The videos; a number of frames that they list is compared with the file's own.
        frames: Frames decoded of each, spread from the first to the last; None decodes all.
        decoder: See `ffn.data.open_video`.
        pattern: Name of a frame inside a folder of frames.
        workers: Processes that decode.
        timeout: Seconds that a video may take; then its process is ended and the video is bad.

    Yields:
        A finding per record, in their order.

    Raises:
        ValueError: if a number is out of range.
    """
    if frames is not None and frames < 1:
        raise ValueError(f"frames is {frames}; expected at least 1, or None for all")
    if workers < 1 or timeout <= 0:
        raise ValueError(f"workers {workers}, timeout {timeout}; expected 1 or more, above 0")
    jobs = [(record, frames, decoder, pattern) for record in records]
    for index, (_, outcome) in enumerate(work(_examine, jobs, workers, timeout)):
        if isinstance(outcome, Broken):
            yield Finding(index, "bad", str(outcome), None, None)
        else:
            yield Finding(index, *outcome)


def _examine(
    job: tuple[Record, int | None, str, str],
) -> tuple[str, str, int | None, float]:
    """Status, cause, frames and seconds of one video; runs in a worker."""
    started = time.perf_counter()
    try:
        status, cause, count = _decode(*job)
    except VideoError as error:
        where = "" if error.frame is None else f"frame {error.frame}: "
        status, cause, count = "bad", f"{where}{error.cause}", None
    except Exception as error:  # whatever it is, it is this video's
        status, cause, count = "bad", f"{type(error).__name__}: {error}", None
    return status, cause, count, time.perf_counter() - started


def _decode(record: Record, frames: int | None, decoder: str, pattern: str) -> tuple[str, str, int]:
    """Status, cause and frames of a video that decodes."""
    is_file = not os.path.isdir(record.path)
    if frames is None and is_file and decoder == "auto":
        probe(record.path, decode_all=True)
    video = open_video(record.path, decoder=decoder, pattern=pattern)
    count = len(video)
    if record.start is not None or record.end is not None:
        video.between(record.start, record.end)
    if frames is not None:
        video.read(np.linspace(0, count - 1, frames).round().astype(int).tolist())
    elif not is_file or decoder != "auto":
        for first in range(0, count, 64):  # bounded memory
            video.read(range(first, min(first + 64, count)))
    if record.frames is not None and record.frames != count:
        return "count", f"lists {record.frames} frames, {count} are shown", count
    if is_file:
        facts = probe(record.path)
        shown, promised = facts.duration, facts.header_duration
        if shown < SHORT * promised and facts.frames > 1:
            return "short", f"shows {shown:.1f} s of the {promised:.1f} s of its header", count
    return "ok", "", count
