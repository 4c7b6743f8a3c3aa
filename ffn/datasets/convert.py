"""Copies of the videos in another form: folders of frames, or small mp4 files that seek well.

Copies go into a folder of their own, each under a temporary name until it is whole; a whole one is
kept when the same preparation runs again. The originals are only read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ffn.data.decoding import VideoError, open_video
from ffn.data.workers import TIMEOUT, work
from ffn.datasets.disk import MARK
from ffn.datasets.facts import VideoFacts, read_facts
from ffn.datasets.index import list_path, write_text
from ffn.datasets.listing import Entry, PreparationError
from ffn.datasets.media import encode_mp4, read_frames, write_images

Part = tuple[str, float | None, float | None]  # path, start and end in seconds


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the copies are.

    Attributes:
        folder: Where they go; absent, empty, or begun by the same conversion.
        form: `frames`: folders of 00001.jpg …; `mp4`: H.264 in closed groups of pictures.
        short_side: In pixels; larger films are made smaller, smaller ones stay. None keeps all.
        quality: Of JPEG, 1 to 100.
        quantiser: Of H.264, 0 (lossless) to 51.
        gop: Frames per group of pictures, which is what one random access decodes at most.
        fps: Rate of an mp4 made from a frame folder, whose images carry no time.
    """

    folder: Path
    form: str
    short_side: int | None = 256
    quality: int = 95
    quantiser: int = 20
    gop: int = 12
    fps: float = 12.0

    def __post_init__(self) -> None:
        limits = {
            "short side": (self.short_side is None or self.short_side >= 2, self.short_side, "≥ 2"),
            "quality": (1 <= self.quality <= 100, self.quality, "1 … 100"),
            "quantiser": (0 <= self.quantiser <= 51, self.quantiser, "0 … 51"),
            "gop": (self.gop >= 1, self.gop, "≥ 1"),
            "fps": (self.fps > 0, self.fps, "> 0"),
            "form": (self.form in ("frames", "mp4"), self.form, "frames or mp4"),
        }
        for name, (fits, value, expected) in limits.items():
            if not fits:
                raise PreparationError(f"{name} is {value}; expected {expected}")

    def settings(self) -> dict[str, object]:
        """What decides how a copy looks."""
        unused = ("quantiser", "gop", "fps") if self.form == "frames" else ("quality",)
        return {k: v for k, v in asdict(self).items() if k not in ("folder", *unused)}


@dataclass(frozen=True, slots=True)
class _Job:
    source: str
    target: str
    frames: int
    fps: float | None
    start: float | None
    end: float | None
    pattern: str
    conversion: Conversion


def claim_folder(conversion: Conversion, root: Path) -> None:
    """Begin or continue a folder of copies.

    Raises:
        FileExistsError: if it holds anything else, or copies made with other settings.
        PreparationError: if the originals lie in it.
    """
    folder = conversion.folder
    if root.is_relative_to(folder):
        raise PreparationError(f"{folder} holds the originals; name a folder for the copies alone")
    mark = folder / MARK
    if mark.is_file():
        found = json.loads(mark.read_text(encoding="utf-8"))
        if found != conversion.settings():
            raise FileExistsError(
                f"{folder} holds copies made with {found}; asked for {conversion.settings()}. "
                "Choose another folder, or delete this one"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and holds something else; choose a new folder")
    else:
        write_text(mark, json.dumps(conversion.settings(), indent=2) + "\n")


def convert_all(
    conversion: Conversion,
    entries: Sequence[Entry],
    facts: dict[str, VideoFacts],
    root: Path,
    *,
    pattern: str,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Entry], dict[str, VideoFacts], dict[Part, str]]:
    """Make the copies of all entries.

    Returns:
        The entries with the paths of their copies, without start and end; facts of the copies by
        path; and why there is none, by the part of the original.
    """
    targets = _targets(conversion, entries, root)
    jobs = [
        _Job(
            source=str(root / path),
            target=str(target),
            frames=facts[path].frames,
            fps=facts[path].fps,
            start=start,
            end=end,
            pattern=pattern,
            conversion=conversion,
        )
        for (path, start, end), target in targets.items()
    ]
    report = progress or (lambda done, count: None)
    outcomes = {}
    report(0, len(jobs))
    for job, outcome in work(_copy_or_cause, jobs, workers, timeout):
        outcomes[job.target] = outcome
        report(len(outcomes), len(jobs))

    copies, copied, failed = [], {}, {}
    for entry in entries:
        key = (entry.path, entry.start, entry.end)
        target = targets[key]
        outcome = outcomes[str(target)]
        if isinstance(outcome, VideoFacts):
            path = list_path(target, root)
            copied[path] = outcome
            copies.append(replace(entry, path=path, start=None, end=None))
        else:
            failed[key] = outcome
    return copies, copied, failed


def _targets(conversion: Conversion, entries: Sequence[Entry], root: Path) -> dict[Part, Path]:
    """A file or folder for each part of a video, under the name of its original."""
    targets: dict[Part, Path] = {}
    taken: set[Path] = set()
    suffix = ".mp4" if conversion.form == "mp4" else ""
    for entry in entries:
        key = (entry.path, entry.start, entry.end)
        if key in targets:
            continue
        name = os.path.splitext(entry.path)[0] if (root / entry.path).is_file() else entry.path
        if entry.start is not None:
            name += f"_{entry.start:06.0f}_{entry.end:06.0f}"
        target = conversion.folder / f"{name}{suffix}"
        if target in taken:  # clip.avi and clip.webm
            target = conversion.folder / f"{entry.path}{suffix}"
        targets[key] = target
        taken.add(target)
    return targets


def _copy_or_cause(job: _Job) -> VideoFacts | str:
    try:
        return _copy(job)
    except VideoError as error:
        return error.cause or str(error)
    except OSError as error:
        return f"the copy cannot be written ({error})"
    except Exception as error:  # whatever it is, it is this video's
        return f"{type(error).__name__}: {error}"


def _copy(job: _Job) -> VideoFacts:
    """Make one copy, unless it stands there whole, and read back what it is."""
    target = Path(job.target)
    chosen = range(job.frames)
    if job.start is not None:
        chosen = open_video(job.source, pattern=job.pattern).between(job.start, job.end)
    found = _finished(job, target, len(chosen))
    if found is not None:
        return found
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.stem}.partial{target.suffix}")
    _remove(partial)
    conversion = job.conversion
    frames = read_frames(job.source, chosen, job.pattern)
    if conversion.form == "frames":
        write_images(partial, frames, conversion.short_side, conversion.quality)
    else:
        encode_mp4(
            partial,
            frames,
            rate=job.fps or conversion.fps,
            short_side=conversion.short_side,
            gop=conversion.gop,
            quantiser=conversion.quantiser,
        )
    written = read_facts(str(partial), _pattern(conversion, job))
    if written.frames != len(chosen):
        _remove(partial)
        cause = f"the copy has {written.frames} frames where {len(chosen)} were written"
        raise VideoError(job.source, cause)
    _remove(target)
    partial.rename(target)
    return written


def _pattern(conversion: Conversion, job: _Job) -> str:
    """Copies are named 00001.jpg … whatever the frames of the originals are called."""
    return "{:05d}.jpg" if conversion.form == "frames" else job.pattern


def _finished(job: _Job, target: Path, frames: int) -> VideoFacts | None:
    """Facts of a copy that is whole and newer than its original."""
    if not target.exists() or target.stat().st_mtime < os.stat(job.source).st_mtime:
        return None
    try:
        found = read_facts(str(target), _pattern(job.conversion, job))
    except VideoError:
        return None
    return found if found.frames == frames else None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
