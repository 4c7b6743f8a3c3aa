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
from dataclasses import asdict, dataclass
from pathlib import Path

from ffn.data.decoding import PATTERN, VideoError, open_video
from ffn.data.suffixes import COPIES
from ffn.data.workers import TIMEOUT, map_in_processes
from ffn.datasets.facts import VideoFacts, cause_of, read_facts
from ffn.datasets.index import list_path
from ffn.datasets.listing import Entry, PreparationError
from ffn.datasets.media import encode_mp4, read_frames, write_images
from ffn.files import write_text

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
        quantizer: Quantizer of H.264, 0 (lossless) to 51.
        gop: Frames per group of pictures: the most that one random access decodes.
        fps: Frame rate of an mp4 from a frame folder, which has no times.
    """

    folder: Path
    format: str
    short_side: int | None = 256
    quality: int = 95
    quantizer: int = 20
    gop: int = 12
    fps: float = 12.0

    def __post_init__(self) -> None:
        limits = {
            "short side": (self.short_side is None or self.short_side >= 2, self.short_side, "≥ 2"),
            "quality": (1 <= self.quality <= 100, self.quality, "1 … 100"),
            "quantizer": (0 <= self.quantizer <= 51, self.quantizer, "0 … 51"),
            "gop": (self.gop >= 1, self.gop, "≥ 1"),
            "fps": (self.fps > 0, self.fps, "> 0"),
            "format": (self.format in ("frames", "mp4"), self.format, "frames or mp4"),
        }
        for name, (fits, value, expected) in limits.items():
            if not fits:
                raise PreparationError(f"{name} is {value}; expected {expected}")

    def to_dict(self) -> dict[str, object]:
        """The settings that determine the content of a copy, as written to `derived.json`."""
        unused = ("quantizer", "gop", "fps") if self.format == "frames" else ("quality",)
        used = {k: v for k, v in asdict(self).items() if k not in ("folder", "format", *unused)}
        return {"format": self.format, **used}


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
        PreparationError: if two copies would have one name.
    """
    originals = {entry.path: _name_inside(entry.path, root) for entry in entries}
    stems = {path: _stem(root / path, name) for path, name in originals.items()}
    shared = Counter(stems.values())
    targets: dict[Part, Path] = {}
    for entry in entries:
        name = stems[entry.path]
        name = originals[entry.path] if shared[name] > 1 else name
        if (entry.start, entry.end) != (None, None):
            name += f"_{_time(entry.start)}_{_time(entry.end)}"
        suffix = ".mp4" if settings.format == "mp4" else ""
        targets[entry.path, entry.start, entry.end] = settings.folder / f"{name}{suffix}"
    doubled = [path for path, count in Counter(targets.values()).items() if count > 1]
    if doubled:
        raise PreparationError(f"two originals would have the copy {doubled[0]}; rename one")
    return targets


def _stem(path: Path, name: str) -> str:
    return os.path.splitext(name)[0] if path.is_file() else name


def _name_inside(path: str, root: Path) -> str:
    """A name without `..` for a path that may be outside of the root.

    Example: for the root `/data/own`, `run/a.mp4` stays, and `../a.mp4` becomes
    `outside/data/a.mp4`.
    """
    whole = Path(os.path.normpath(root / path))
    top = os.path.normpath(root)
    if whole.is_relative_to(top):
        return whole.relative_to(top).as_posix()
    return f"outside/{whole.relative_to(whole.anchor).as_posix()}"


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
            rate=job.fps or settings.fps,
            short_side=settings.short_side,
            gop=settings.gop,
            quantizer=settings.quantizer,
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
