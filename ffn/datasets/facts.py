"""Frame count, size and rate of each video, read in worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ffn.data.decoding import FrameFolder, VideoError, VideoMetadata, probe
from ffn.data.workers import TIMEOUT, map_in_processes, memory_cause


def read_all(
    paths: Iterable[str],
    root: Path,
    *,
    pattern: str,
    verify: bool = False,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: bool = False,
) -> dict[str, VideoMetadata | str]:
    """Read the facts of all files; return facts or the cause of an error by path.

    Args:
        paths: Paths relative to the root.
        root: Folder of the data set.
        pattern: File name of a frame in a folder.
        verify: Decode every frame.
        workers: Number of processes; 0 runs in this process.
        timeout: Seconds per file.
        progress: Show a progress bar.
    """
    from rich.progress import track

    jobs = [(path, str(root / path), pattern, verify) for path in dict.fromkeys(paths)]
    results = map_in_processes(_facts_or_cause, jobs, workers, timeout)
    shown = track(results, "reading", total=len(jobs), disable=not progress)
    return {path: result for (path, *_), result in shown}


def cause_of(error: Exception) -> str:
    """Why a video cannot be read, for the list of problems."""
    if cause := memory_cause(error):
        return cause
    if isinstance(error, VideoError):
        where = "" if error.frame is None else f"frame {error.frame}: "
        return where + (error.cause or str(error))
    return f"{type(error).__name__}: {error}"


def _facts_or_cause(job: tuple[str, str, str, bool]) -> VideoMetadata | str:
    _, path, pattern, verify = job
    try:
        if os.path.isdir(path):
            return _folder_facts(path, pattern, verify)
        return probe(path, decode_all=verify)
    except Exception as error:  # any error of this video
        return cause_of(error)


def _folder_facts(path: str, pattern: str, verify: bool) -> VideoMetadata:
    """Facts of a frame folder, which has no times."""
    folder = FrameFolder(path, pattern)
    height, width = folder.read([0]).shape[1:3]
    for index in range(len(folder)) if verify else ():
        size = tuple(folder.read([index]).shape[1:3])
        if size != (height, width):
            cause = f"is {size[1]} x {size[0]} pixels, the first {width} x {height}"
            raise VideoError(path, cause, index)
    return VideoMetadata(len(folder), 0.0, 0.0, width, height)
