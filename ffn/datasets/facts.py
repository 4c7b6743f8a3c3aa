"""Facts about each video, gathered in parallel and kept in a journal as they come in.

The journal has one JSON object per line, `{"path", "size", "mtime", "verified", "facts" or
"error"}`; a file whose size and time of change are still the same is not opened again, so an
interrupted preparation continues where it was. Half a line at the end, as a killed process leaves
it, is cut off.
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
from ffn.data.workers import TIMEOUT, Broken, work


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What the index says about one video.

    Attributes:
        frames: Number of frames.
        width: In pixels, standing upright; `height` likewise.
        fps: Frames per second; None if there are no times: a frame folder, a single frame.
        duration: In seconds, or None likewise.
    """

    frames: int
    width: int
    height: int
    fps: float | None = None
    duration: float | None = None


def read_facts(path: str, pattern: str, verify: bool = False) -> VideoFacts:
    """Facts about a video file or a frame folder.

    Args:
        path: File or folder.
        pattern: Name of a frame in a folder, as `{:05d}.jpg`.
        verify: Decode every frame.

    Raises:
        VideoError: if it cannot be read, or a folder has a gap.
    """
    if os.path.isdir(path):
        return _folder_facts(path, pattern, verify)
    found = probe(path, decode_all=verify)
    times = (found.fps or None, found.duration or None)
    return VideoFacts(found.frames, found.width, found.height, *times)


class Journal:
    """Facts, or why there are none, of files that did not change.

    Args:
        path: The file; made if it does not exist.
        root: Folder that the paths in it start from.
        pattern: Name of a frame in a folder, as `{:05d}.jpg`.
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
        """Facts, or why there are none; None if the file is new, changed, or unverified."""
        line = self._lines.get(path)
        if line is None or line["key"] != self._key(path) or (verified and not line["verified"]):
            return None
        return VideoFacts(**line["facts"]) if "facts" in line else line["error"]

    def add(self, path: str, verified: bool, outcome: VideoFacts | str) -> None:
        """Keep an outcome, on disk at once."""
        line: dict[str, Any] = {"path": path, "key": self._key(path), "verified": verified}
        if isinstance(outcome, VideoFacts):
            line["facts"] = asdict(outcome)
        else:
            line["error"] = outcome
        self._lines[path] = line
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _key(self, path: str) -> list[int | str] | None:
        """What tells a changed file: size and time in ns; a folder's frames hang on the pattern."""
        try:
            found = os.stat(self.root / path)
        except OSError:
            return None
        folder = stat.S_ISDIR(found.st_mode)
        return [found.st_size, found.st_mtime_ns, *([self.pattern] if folder else [])]

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
                continue  # it is gathered again
        if len(whole) < len(text):
            os.truncate(self.path, len(whole))


def gather(
    journal: Journal,
    paths: Iterable[str],
    *,
    verify: bool = False,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, VideoFacts | str]:
    """Facts, or why there are none, of all paths.

    Args:
        journal: What is known already, and where it is written to.
        paths: Relative to the root of the journal.
        verify: Decode every frame.
        workers: Processes; 0 works in this one.
        timeout: Seconds that a file may take in a process.
        progress: Called with (done, all).
    """
    wanted = list(dict.fromkeys(paths))
    outcomes = {path: journal.find(path, verify) for path in wanted}
    todo = [path for path, outcome in outcomes.items() if outcome is None]
    jobs = [(path, str(journal.root / path), journal.pattern, verify) for path in todo]
    done = len(wanted) - len(todo)
    report = progress or (lambda done, count: None)
    report(done, len(wanted))
    for (path, *_), outcome in work(_facts_or_cause, jobs, workers, timeout):
        outcomes[path] = outcome
        if not isinstance(outcome, Broken):
            journal.add(path, verify, outcome)
        done += 1
        report(done, len(wanted))
    return outcomes


def _facts_or_cause(job: tuple[str, str, str, bool]) -> VideoFacts | str:
    _, path, pattern, verify = job
    try:
        return read_facts(path, pattern, verify)
    except VideoError as error:
        where = "" if error.frame is None else f"frame {error.frame}: "
        return where + (error.cause or str(error))
    except Exception as error:  # whatever it is, it is this video's
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
