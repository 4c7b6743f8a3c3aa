"""Copy the videos as small mp4 files with frequent key frames.

The copies are written to a separate folder, each under a temporary name until it is complete.
Running the same preparation again keeps complete copies. The originals stay unchanged.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path

from PIL import Image

from ffn.data.decoding import Video, VideoError, VideoMetadata, open_video, probe
from ffn.data.suffixes import COPIES
from ffn.data.workers import TIMEOUT, map_in_processes
from ffn.datasets.facts import cause_of
from ffn.datasets.index import list_path
from ffn.datasets.listing import Entry, PreparationError
from ffn.files import write_text

FOLDER_RATE = 12.0  # frames per second of an mp4 from a frame folder, which has no times
QUANTIZER = "20"  # of H.264, 0 (lossless) to 51

Part = tuple[str, float | None, float | None]  # path, start and end in seconds
Job = tuple[Path, Path, list[float | None], float]  # source, target, start and end, frame rate


@dataclass(frozen=True, slots=True)
class CopySettings:
    """Settings of the copies: H.264 in mp4, with closed groups of pictures.

    Attributes:
        folder: Folder for the copies: absent, empty, or with copies of the same settings.
        short_side: Upper bound on the shorter side in pixels; None keeps the size. Videos are never
            enlarged.
        gop: Frames per group of pictures: the most that one random access decodes.
    """

    folder: Path
    short_side: int | None = 256
    gop: int = 12

    def __post_init__(self) -> None:
        if self.short_side is not None and self.short_side < 2:
            raise PreparationError(f"short_side is {self.short_side}; expected at least 2")
        if self.gop < 1:
            raise PreparationError(f"gop is {self.gop}; expected at least 1")

    def to_dict(self) -> dict[str, object]:
        """The settings that determine the content of a copy, as written to `derived.json`."""
        return {name: value for name, value in asdict(self).items() if name != "folder"}


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
    facts: dict[str, VideoMetadata],
    root: Path,
    *,
    pattern: str,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: bool = False,
) -> dict[Part, tuple[str, VideoMetadata] | str]:
    """Copy the videos of all entries.

    Returns:
        For each part of an original, the path of its copy relative to the root with its facts, or
        the cause of a failure.
    """
    from rich.progress import track

    targets = _targets(settings, entries, root)
    jobs = [
        (root / path, target, times, facts[path].fps) for (path, *times), target in targets.items()
    ]
    copy = partial(_copy_or_cause, settings=settings, pattern=pattern)
    results = map_in_processes(copy, jobs, workers, timeout)
    shown = track(results, "copying", total=len(jobs), disable=not progress)
    return {
        part: result if isinstance(result, str) else (list_path(target, root), result)
        for (part, target), (_, result) in zip(targets.items(), shown, strict=True)
    }


def _targets(settings: CopySettings, entries: Iterable[Entry], root: Path) -> dict[Part, Path]:
    """File of the copy of each part, named after the original and the times.

    Raises:
        PreparationError: if two copies would have one name, or an original is outside of the root.
    """
    targets: dict[Part, Path] = {}
    for entry in entries:
        name = Path(os.path.relpath(root / entry.path, root))
        if ".." in name.parts:
            raise PreparationError(
                f"{entry.path} is outside of {root}; copies are made of videos under the root only"
            )
        stem = str(name.with_suffix("") if (root / name).is_file() else name)
        if (entry.start, entry.end) != (None, None):
            stem += f"_{_time(entry.start)}_{_time(entry.end)}"
        targets[entry.path, entry.start, entry.end] = settings.folder / f"{stem}.mp4"
    doubled = [path for path, count in Counter(targets.values()).items() if count > 1]
    if doubled:
        raise PreparationError(f"two originals would have the copy {doubled[0]}; rename one")
    return targets


def _time(seconds: float | None) -> str:
    """A time in a name: whole seconds with six digits, else all digits, so that names differ."""
    if seconds is None:
        return ""
    return f"{seconds:06.0f}" if float(seconds).is_integer() else repr(float(seconds))


def _copy_or_cause(job: Job, settings: CopySettings, pattern: str) -> VideoMetadata | str:
    try:
        return _copy(*job, settings, pattern)
    except Exception as error:  # any error of this video, or of the disk
        return cause_of(error)


def _copy(
    source: Path,
    target: Path,
    times: list[float | None],
    fps: float,
    settings: CopySettings,
    pattern: str,
) -> VideoMetadata:
    """Make one copy unless it is complete already; return the facts of the copy."""
    video = open_video(source, pattern=pattern)
    chosen = range(len(video)) if times == [None, None] else video.between(*times)
    if found := _existing(source, target, len(chosen)):
        return found
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.stem}.partial{target.suffix}")
    images = _small_images(video, chosen, settings.short_side)
    _write_mp4(part, images, fps or FOLDER_RATE, settings.gop)
    written = probe(part)
    if written.frames != len(chosen):
        part.unlink()
        cause = f"the copy has {written.frames} frames instead of {len(chosen)}"
        raise VideoError(str(source), cause)
    part.replace(target)
    return written


def _existing(source: Path, target: Path, frames: int) -> VideoMetadata | None:
    """Facts of a complete copy that is newer than its original, else None."""
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        return None
    try:
        found = probe(target)
    except VideoError:
        return None
    return found if found.frames == frames else None


def _small_images(
    video: Video, chosen: Iterable[int], short_side: int | None
) -> Iterator[Image.Image]:
    """Frames of a video upright, with a shorter side of at most `short_side`, one at a time.

    Both sides are even, as H.264 needs: 1920 x 1080 with 256 becomes 456 x 256 (455.1 rounded).
    """
    first = None
    for index, pixels in video.in_order(chosen):
        image = Image.fromarray(pixels)
        first = first or image.size
        if image.size != first:
            cause = "is {} x {} pixels, others {} x {}".format(*image.size, *first)
            raise VideoError(video.path, cause, index)
        scale = min(1.0, (short_side or min(first)) / min(first))
        size = tuple(max(2, round(side * scale / 2) * 2) for side in first)
        yield image if size == first else image.resize(size, Image.Resampling.BICUBIC)


def _write_mp4(path: Path, images: Iterator[Image.Image], rate: float, gop: int) -> None:
    """Write images as H.264 in mp4, with constant rate and quantizer, without audio.

    Groups of pictures are closed and have no B-frames, so decoding from the nearest key frame gives
    the same pixels as decoding from the start. Colors are those of the images, as BT.601 in limited
    range.
    """
    import av
    from av.video.reformatter import ColorRange, Colorspace

    options = {
        "qp": QUANTIZER,
        "preset": "veryfast",
        "bf": "0",
        "sc_threshold": "0",
        "x264-params": "open-gop=0",
    }
    colors = {
        "format": "yuv420p",
        "dst_colorspace": Colorspace.ITU601,
        "dst_color_range": ColorRange.MPEG,
    }
    first = next(images)
    place = f"file:{path}"  # without it, a colon in the path makes it an address
    with av.open(place, "w", format="mp4", options={"movflags": "+faststart"}) as container:
        rate = Fraction(rate).limit_denominator(1001)
        stream = container.add_stream("libx264", rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = *first.size, "yuv420p"
        context = stream.codec_context
        context.gop_size, context.thread_count = gop, 1
        context.colorspace, context.color_range = 6, 1  # BT.601, limited range
        context.time_base = 1 / rate
        for index, image in enumerate(chain([first], images)):
            frame = av.VideoFrame.from_image(image).reformat(**colors)
            frame.pts, frame.time_base = index, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
