"""Copy the videos as folders of frames, or as small mp4 files with frequent key frames.

The copies are written to a separate folder, each under a temporary name until it is complete.
Running the same preparation again keeps complete copies. The originals stay unchanged.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ffn.data.decoding import PATTERN, VideoError, open_video
from ffn.data.suffixes import COPIES
from ffn.data.workers import TIMEOUT, map_in_processes
from ffn.datasets.facts import VideoFacts, cause_of, read_facts
from ffn.datasets.index import list_path
from ffn.datasets.listing import Entry, PreparationError
from ffn.datasets.media import encode_mp4, read_frames, write_images
from ffn.files import write_text

FOLDER_RATE = 12.0  # frames per second of an mp4 from a frame folder, which has no times

Times = list[float | None]  # start and end in seconds
Part = tuple[str, float | None, float | None]  # path, start and end in seconds


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Format and settings of the copies.

    Attributes:
        folder: Folder for the copies: absent, empty, or with copies of the same settings.
        format: `frames`: folders of 00001.jpg …; `mp4`: H.264 with closed groups of pictures.
        short_side: Upper bound on the shorter side in pixels; None keeps the size. Videos are never
            enlarged.
        quality: JPEG quality, 1 to 100.
        gop: Frames per group of pictures: the most that one random access decodes.
    """

    folder: Path
    format: str
    short_side: int | None = 256
    quality: int = 95
    gop: int = 12

    def __post_init__(self) -> None:
        limits = {
            "short side": (self.short_side is None or self.short_side >= 2, self.short_side, "≥ 2"),
            "quality": (1 <= self.quality <= 100, self.quality, "1 … 100"),
            "gop": (self.gop >= 1, self.gop, "≥ 1"),
            "format": (self.format in ("frames", "mp4"), self.format, "frames or mp4"),
        }
        for name, (fits, value, expected) in limits.items():
            if not fits:
                raise PreparationError(f"{name} is {value}; expected {expected}")

    def to_dict(self) -> dict[str, object]:
        """The settings that determine the content of a copy, as written to `derived.json`."""
        used = {"quality": self.quality} if self.format == "frames" else {"gop": self.gop}
        return {"format": self.format, "short_side": self.short_side, **used}


@dataclass(frozen=True, slots=True)
class _Job:
    source: Path
    target: Path
    frames: int
    fps: float | None
    times: Times
    pattern: str
    settings: CopySettings


def claim_copies(settings: CopySettings, root: Path) -> None:
    """Create the folder for the copies, or check that it holds copies with the same settings.

    Raises:
        FileExistsError: if it holds anything else, or copies with other settings.
        PreparationError: if it contains the originals.
    """
    folder = settings.folder
    if root.is_relative_to(folder):
        raise PreparationError(f"{folder} holds the originals; name another folder for the copies")
    mark = folder / COPIES
    if mark.is_file():
        found = json.loads(mark.read_text(encoding="utf-8"))
        if found != settings.to_dict():
            raise FileExistsError(
                f"{folder} holds copies with {found}, not {settings.to_dict()}. Choose another "
                "folder, or delete this one"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and holds something else; choose a new folder")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(mark, json.dumps(settings.to_dict(), indent=2) + "\n")


def copy_all(
    settings: CopySettings,
    entries: Sequence[Entry],
    facts: dict[str, VideoFacts],
    root: Path,
    *,
    pattern: str,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> dict[Part, tuple[str, VideoFacts] | str]:
    """Copy the videos of all entries.

    Returns:
        For each part of an original, the path of its copy relative to the root with its facts, or
        the cause of a failure.
    """
    targets = _targets(settings, entries, root)
    jobs = [
        _Job(root / path, target, facts[path].frames, facts[path].fps, times, pattern, settings)
        for (path, *times), target in targets.items()
    ]
    progress(0, len(jobs))
    results: dict[Part, tuple[str, VideoFacts] | str] = {}
    copied = map_in_processes(_copy_or_cause, jobs, workers, timeout)
    for (part, target), (_, result) in zip(targets.items(), copied, strict=True):
        results[part] = result if isinstance(result, str) else (list_path(target, root), result)
        progress(len(results), len(jobs))
    return results


def _targets(settings: CopySettings, entries: Sequence[Entry], root: Path) -> dict[Part, Path]:
    """File or folder of the copy of each part, named after the original and the times.

    The suffix of an original is part of the name if it would be another's otherwise: clip.avi and
    clip.webm become clip.avi.mp4 and clip.webm.mp4.

    Raises:
        PreparationError: if two copies would have one name, or an original is outside of the root.
    """
    originals = {entry.path: Path(os.path.relpath(root / entry.path, root)) for entry in entries}
    outside = [path for path, name in originals.items() if ".." in name.parts]
    if outside:
        raise PreparationError(
            f"{outside[0]} is outside of {root}; copies are made of videos under the root only"
        )
    stems = {
        path: name.with_suffix("") if (root / name).is_file() else name
        for path, name in originals.items()
    }
    shared = Counter(stems.values())
    targets: dict[Part, Path] = {}
    for entry in entries:
        name = stems[entry.path]
        name = str(originals[entry.path] if shared[name] > 1 else name)
        if (entry.start, entry.end) != (None, None):
            name += f"_{_time(entry.start)}_{_time(entry.end)}"
        suffix = ".mp4" if settings.format == "mp4" else ""
        targets[entry.path, entry.start, entry.end] = settings.folder / f"{name}{suffix}"
    doubled = [path for path, count in Counter(targets.values()).items() if count > 1]
    if doubled:
        raise PreparationError(f"two originals would have the copy {doubled[0]}; rename one")
    return targets


def _time(seconds: float | None) -> str:
    """A time in a name: whole seconds with six digits, else all digits, so that names differ."""
    if seconds is None:
        return ""
    return f"{seconds:06.0f}" if float(seconds).is_integer() else repr(float(seconds))


def _copy_or_cause(job: _Job) -> VideoFacts | str:
    try:
        return _copy(job)
    except Exception as error:  # any error of this video, or of the disk
        return cause_of(error)


def _copy(job: _Job) -> VideoFacts:
    """Make one copy unless it is complete already; return the facts of the copy."""
    target, settings = job.target, job.settings
    source = str(job.source)
    chosen = range(job.frames)
    if job.times != [None, None]:
        chosen = open_video(source, pattern=job.pattern).between(*job.times)
    found = _existing(job, len(chosen))
    if found is not None:
        return found
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.stem}.partial{target.suffix}")
    _remove(partial)
    frames = read_frames(source, chosen, job.pattern)
    if settings.format == "frames":
        write_images(partial, frames, settings.short_side, settings.quality)
    else:
        encode_mp4(
            partial,
            frames,
            rate=job.fps or FOLDER_RATE,
            short_side=settings.short_side,
            gop=settings.gop,
        )
    written = read_facts(str(partial), PATTERN)
    if written.frames != len(chosen):
        _remove(partial)
        raise VideoError(source, f"the copy has {written.frames} frames instead of {len(chosen)}")
    _remove(target)
    partial.rename(target)
    return written


def _existing(job: _Job, frames: int) -> VideoFacts | None:
    """Facts of a complete copy that is newer than its original, else None."""
    target = job.target
    if not target.exists() or target.stat().st_mtime < job.source.stat().st_mtime:
        return None
    try:
        found = read_facts(str(target), PATTERN)
    except VideoError:
        return None
    return found if found.frames == frames else None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
