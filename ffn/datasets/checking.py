"""Decode all videos of a list in worker processes and report the damaged ones.

A damaged file may raise an error, hang or crash its process; each of these becomes a finding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, check_pattern, open_video, probe
from ffn.data.workers import Failure, map_in_processes
from ffn.datasets.facts import cause_of

SHORT = 0.8  # reported as short: a video below this fraction of the duration in its header


@dataclass(frozen=True)
class Finding:
    """The result of checking one video.

    Attributes:
        index: Index of the record.
        status: `ok`; `count`: it decodes, with another number of frames than listed; `short`: it
            decodes, but ends long before the duration in its header; `bad`: it does not decode.
        cause: The cause, or "".
        frames: Number of decoded frames; None if unknown.
        seconds: Time to decode; None if the process exited unexpectedly or timed out.
    """

    index: int
    status: str
    cause: str
    frames: int | None
    seconds: float | None

    @property
    def usable(self) -> bool:
        """Whether all requested frames decode."""
        return self.status != "bad"


def check_videos(
    records: Sequence[Record],
    *,
    frames: int | None = None,
    pattern: str = PATTERN,
    workers: int = 1,
    timeout: float = 60.0,
) -> Iterator[Finding]:
    """Decode each video.

    Args:
        records: The videos; their listed number of frames is compared with the file.
        frames: Number of frames to decode of each, evenly spaced; None decodes all.
        pattern: File name of a frame in a folder of frames.
        workers: Number of processes; 0 runs in this process, without timeout.
        timeout: Seconds per video; a video that takes longer is bad.

    Yields:
        A finding per record, in the order of the records.

    Raises:
        ValueError: if a number is out of range, or the pattern has not exactly one field for a
            number.
    """
    if frames is not None and frames < 1:
        raise ValueError(f"frames is {frames}; expected at least 1, or None for all")
    check_pattern(pattern)
    jobs = [(record, frames, pattern) for record in records]
    for index, (_, result) in enumerate(map_in_processes(_check, jobs, workers, timeout)):
        if isinstance(result, Failure):
            yield Finding(index, "bad", str(result), None, None)
        else:
            yield Finding(index, *result)


def _check(
    job: tuple[Record, int | None, str],
) -> tuple[str, str, int | None, float]:
    """Status, cause, frames and seconds of one video; runs in a worker."""
    started = time.perf_counter()
    try:
        status, cause, count = _decode(*job)
    except Exception as error:  # any other error of this video
        status, cause, count = "bad", cause_of(error), None
    return status, cause, count, time.perf_counter() - started


def _decode(record: Record, frames: int | None, pattern: str) -> tuple[str, str, int]:
    """Status, cause and frames of a video that decodes."""
    is_file = not os.path.isdir(record.path)
    facts = probe(record.path, decode_all=frames is None) if is_file else None
    video = open_video(record.path, pattern=pattern)
    count = len(video)
    if record.start is not None or record.end is not None:
        video.between(record.start, record.end)
    if frames is not None:
        video.read(np.linspace(0, count - 1, frames).round().astype(int).tolist())
    elif not is_file:
        for first in range(0, count, 64):  # bounded memory
            video.read(range(first, min(first + 64, count)))
    if record.frames is not None and record.frames != count:
        return "count", f"{record.frames} frames listed, {count} decoded", count
    if facts and facts.frames > 1 and facts.duration < SHORT * facts.header_duration:
        lasts = f"lasts {facts.duration:.1f} s; its header has {facts.header_duration:.1f} s"
        return "short", lasts, count
    return "ok", "", count
