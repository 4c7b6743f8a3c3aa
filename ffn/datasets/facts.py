"""Frame count, size and rate of each video, read in parallel and cached in a journal.

The journal has one JSON object per line, `{"path", "key", "verified", "facts" or "error"}`. The
key holds sizes and modification times of the file, or of a folder and its frames. A file with facts
and the same key is not opened again; one with an error is, as its cause may be outside of the file.
An incomplete last line, left by a killed process, is removed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ffn.data.decoding import FrameFolder, VideoError, probe
from ffn.data.workers import TIMEOUT, Failure, map_in_processes
from ffn.files import naming


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """The columns of the index that describe one video.

    Attributes:
        frames: Number of frames.
        width: Width in pixels after rotation to upright.
        height: Height in pixels after rotation to upright.
        fps: Frames per second; None without times (a frame folder or a single frame).
        duration: Duration in seconds; None without times.
    """

    frames: int
    width: int
    height: int
    fps: float | None = None
    duration: float | None = None


def read_facts(path: str, pattern: str, verify: bool = False) -> VideoFacts:
    """Read the facts of a video file or a frame folder.

    Args:
        path: File or folder.
        pattern: File name of a frame in a folder, such as `{:05d}.jpg`.
        verify: Decode every frame.

    Raises:
        VideoError: if it cannot be decoded, or a frame of a folder is missing.
    """
    if os.path.isdir(path):
        return _folder_facts(path, pattern, verify)
    found = probe(path, decode_all=verify)
    times = (found.fps or None, found.duration or None)
    return VideoFacts(found.frames, found.width, found.height, *times)


class Journal:
    """Facts or errors of files, valid while a file does not change.

    Args:
        path: The journal file; created if it does not exist.
        root: Folder to which the paths in it are relative.
        pattern: File name of a frame in a folder, such as `{:05d}.jpg`.
    """

    def __init__(self, path: Path, root: Path, pattern: str) -> None:
        self.path, self.root, self.pattern = path, root, pattern
        self._lines: dict[str, dict[str, Any]] = {}
        self._load()
        self._file = path.open("a", encoding="utf-8")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def find(self, path: str, verified: bool) -> VideoFacts | str | None:
        """Facts or error of a file; None if it is new, changed or, if requested, not verified."""
        line = self._lines.get(path)
        if line is None or (verified and not line["verified"]):
            return None
        if line["key"] != self._key(path, line["verified"]):
            return None
        return VideoFacts(**line["facts"]) if "facts" in line else line["error"]

    def failed_verified(self, path: str) -> bool:
        """Whether a file, which has not changed, had an error when all its frames were decoded."""
        return isinstance(self.find(path, verified=True), str)

    def add(self, path: str, verified: bool, result: VideoFacts | str) -> None:
        """Append a result to the journal, unless it is the last one of the file."""
        key = self._key(path, verified)
        line: dict[str, Any] = {"path": path, "key": key, "verified": verified}
        if isinstance(result, VideoFacts):
            line["facts"] = asdict(result)
        else:
            line["error"] = result
        if line == self._lines.get(path):
            return
        self._lines[path] = line
        with naming(self.path):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _key(self, path: str, verified: bool) -> list[int | str] | None:
        """Size, modification time in ns and, for a folder, more; None without the file."""
        try:
            found = os.stat(self.root / path)
            key = [found.st_size, found.st_mtime_ns]
            if stat.S_ISDIR(found.st_mode):
                key += [self.pattern, *_frames_key(self.root / path, verified)]
        except OSError:
            return None
        return key

    def _load(self) -> None:
        if not self.path.exists():
            return
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                one = json.loads(line)
                self._lines[one["path"]] = one
            except (ValueError, TypeError, KeyError):
                continue  # read the file again
        if len(whole) < len(text):
            os.truncate(self.path, len(whole))


def _frames_key(folder: Path, verified: bool) -> tuple[int, int, int]:
    """Number of files in a folder; sum of the sizes and newest modification time in ns of some.

    They change when a frame is replaced in place. Verified facts depend on all files, others on
    few: the first, middle and last one by name.
    """
    names = sorted(os.listdir(folder))
    few = {0, len(names) // 2, len(names) - 1} if names else ()
    found = [os.stat(folder / names[n]) for n in (range(len(names)) if verified else few)]
    newest = max((one.st_mtime_ns for one in found), default=0)
    return len(names), sum(one.st_size for one in found), newest


def is_journal(path: Path) -> bool:
    """Whether a file is a `Journal`: it has a line of one, or was cut off before its first line."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
        if not first.endswith(b"\n"):
            start = b'{"path": '
            return first[: len(start)] == start[: len(first)]
        return _is_line(first) or any(map(_is_line, file))


def _is_line(line: bytes) -> bool:
    try:
        return {"path", "key", "verified"} <= json.loads(line).keys()
    except (ValueError, AttributeError):
        return False


def read_all(
    journal: Journal,
    paths: Iterable[str],
    *,
    verify: bool = False,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, VideoFacts | str]:
    """Read the facts of all files; return facts or error by path.

    A file with an error in the journal is read again, with all frames if the error was found so.

    Args:
        journal: Cache of the results.
        paths: Paths relative to the root of the journal.
        verify: Decode every frame.
        workers: Number of processes; 0 runs in this process.
        timeout: Seconds per file.
        progress: Called with the number of finished files and of all files.
    """
    wanted = list(dict.fromkeys(paths))
    results = {path: journal.find(path, verify) for path in wanted}
    todo = [path for path, result in results.items() if not isinstance(result, VideoFacts)]
    jobs = [
        (path, str(journal.root / path), journal.pattern, verify or journal.failed_verified(path))
        for path in todo
    ]
    done = len(wanted) - len(todo)
    report = progress or (lambda done, count: None)
    report(done, len(wanted))
    for (path, *_, verified), result in map_in_processes(_facts_or_cause, jobs, workers, timeout):
        results[path] = result
        if not isinstance(result, Failure):
            journal.add(path, verified, result)
        done += 1
        report(done, len(wanted))
    return results


def _facts_or_cause(job: tuple[str, str, str, bool]) -> VideoFacts | str:
    _, path, pattern, verify = job
    try:
        return read_facts(path, pattern, verify)
    except VideoError as error:
        where = "" if error.frame is None else f"frame {error.frame}: "
        return where + (error.cause or str(error))
    except Exception as error:  # any other error of this video
        return f"{type(error).__name__}: {error}"


def _folder_facts(path: str, pattern: str, verify: bool) -> VideoFacts:
    folder = FrameFolder(path, pattern)
    height, width = folder.read([0]).shape[1:3]
    if verify:
        for index in range(len(folder)):
            size = tuple(folder.read([index]).shape[1:3])
            if size != (height, width):
                cause = f"is {size[1]} x {size[0]} pixels, the first {width} x {height}"
                raise VideoError(path, cause, index)
    return VideoFacts(len(folder), width, height)
