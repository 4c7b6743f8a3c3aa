"""Pack a data set into a clip store, in parallel worker processes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, VideoError
from ffn.data.records import has_several_labels
from ffn.data.store.clip import EncodedClip, encode_clip
from ffn.data.store.layout import FORMATS, SEVERAL, StoreError, Unreadable, key_of
from ffn.data.store.writer import LOCK, TRANSFER, StoreWriter, check_folder
from ffn.data.workers import TIMEOUT, check_timeout, map_in_processes
from ffn.files import naming

if TYPE_CHECKING:
    from rich.progress import Progress

QUALITY = 90
LOCK_TIMEOUT = 3  # seconds; the workers of a killed pack end within one

Name = tuple[str, float | None, float | None]  # key, start, end


@dataclass
class PackReport:
    """The result of `pack`.

    Attributes:
        packed: Number of clips that were added.
        kept: Number of requested clips that an earlier or interrupted run had packed.
        unreadable: The requested videos that could not be packed, with the cause.
        clips: Number of clips in the store.
        frames: Number of frames in the store.
        bytes: Size of all shards.
    """

    packed: int = 0
    kept: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)
    clips: int = 0
    frames: int = 0
    bytes: int = 0


def pack(
    records: Sequence[Record],
    folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    format: str = "jpeg",
    short_side: int = 256,
    quality: int = QUALITY,
    shard_mib: int = 256,
    pattern: str = PATTERN,
    workers: int = 0,
    timeout: float = TIMEOUT,
    append: bool = False,
    progress: bool = False,
) -> PackReport:
    """Pack videos into a clip store.

    Every frame of each record (of its time range, if it has one) is decoded, downscaled if its
    shorter side exceeds `short_side`, encoded and written. Duplicate records are packed once.
    Calling again with the same arguments resumes an interrupted pack; the result is byte-identical
    to that of an uninterrupted one. A finished store is not changed unless `append` is True; then
    the missing records are added in new shards.

    Args:
        records: The videos, as `read_annotations` returns them, of one list or several.
        folder: Folder of the store; created if necessary.
        root: Folder of the data set. Clips are named by their path relative to it, so the data set
            and the store may move. Default: the paths of the records.
        format: `jpeg`; or `raw`, uncompressed uint8 RGB, for small sets.
        short_side: Upper bound on the shorter side in pixels. Videos are never enlarged.
        quality: JPEG quality, 1 to 100.
        shard_mib: Maximum size of a shard in MiB; a longer clip gets its own shard.
        pattern: File name of a frame in a folder of frames.
        workers: Number of processes that decode and encode; 0 runs in this process.
        timeout: Seconds per video. A video that times out or crashes its process is unreadable.
            No effect with 0 workers.
        append: Add to a finished store.
        progress: Show a progress bar.

    Returns:
        A report. Unreadable videos are listed in it and in the store.

    Raises:
        ValueError: if an option is out of range or there is no record.
        StoreError: if `folder` holds a store with other options, a finished store that lacks some
            of the records while `append` is False, or if another process packs into it.
        FileExistsError: if `folder` holds other files.
        OSError: if the store cannot be written.
    """
    if not records:
        raise ValueError("records is empty; expected at least one video")
    check_options(format, short_side, quality, shard_mib, workers, timeout)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "format": format,
        "short_side": short_side,
        "quality": quality if format == "jpeg" else None,
    }
    root = None if root is None else os.fspath(root)
    requested = {(key_of(r.path, root), r.start, r.end): r for r in reversed(records)}
    requested = dict(reversed(requested.items()))  # the first of several duplicates
    check_folder(folder)  # before it gets a lock file
    try:
        with (
            FileLock(folder / LOCK, timeout=LOCK_TIMEOUT),
            closing(
                StoreWriter(folder, options, shard_bytes=shard_mib * 2**20, append=append)
            ) as writer,
            _transfer_folder(folder) if workers else nullcontext() as transfer,
        ):
            encode = partial(_encode, options=options, pattern=pattern, transfer=transfer)
            run = partial(map_in_processes, encode, workers=workers, timeout=timeout)
            return _pack(requested, writer, run, progress)
    except Timeout:
        raise StoreError(f"another process packs into {folder}; wait until it is done") from None


def _pack(
    requested: Mapping[Name, Record],
    writer: StoreWriter,
    encode_all: Callable[[Sequence[Record]], Iterator[tuple[Record, Any]]],
    progress: bool,
) -> PackReport:
    """Encode and write the clips that the store lacks."""
    missing = {name: record for name, record in requested.items() if name not in writer.known}
    report = PackReport(kept=len(requested) - len(missing))
    if writer.finished:
        report.unreadable = _known_unreadable(writer, missing)
    else:
        results = encode_all(list(missing.values()))
        with closing(results), _progress(enabled=progress) as bar:
            task = bar.add_task("packing", total=len(requested), completed=report.kept)
            for name, (record, result) in zip(missing, results, strict=True):
                if isinstance(result, str):
                    report.unreadable.append(Unreadable(*name, str(result)))
                else:
                    label = SEVERAL if has_several_labels([record]) else record.label
                    writer.add(*name, label, _receive(*result))
                    report.packed += 1
                bar.advance(task)
        writer.finish(report.unreadable)
    manifest = writer.manifest
    report.clips, report.frames = manifest.clips, manifest.frames
    report.bytes = sum(shard.bytes for shard in manifest.shards)
    return report


def _known_unreadable(writer: StoreWriter, missing: Mapping[Name, Record]) -> list[Unreadable]:
    """Entries of a finished store for the missing videos.

    Raises:
        StoreError: if the store has no entry for some of them.
    """
    known = [one for one in writer.manifest.unreadable if one[:3] in missing]
    new = [name for name in missing if name not in {one[:3] for one in known}]
    if new:
        raise StoreError(
            f"{writer.folder} is a finished store and lacks {len(new)} of the videos, such as "
            f"{new[0][0]}; add them with append (--append), or name "
            "another folder"
        )
    return known


def _encode(
    record: Record, *, options: Mapping[str, Any], pattern: str, transfer: Path | None
) -> tuple[EncodedClip, Path | None] | str:
    """Encode a record, or return why it cannot be read.

    A worker process writes the bytes of the clip to a file in `transfer`: a process that exits
    while it sends them through the pipe of the pool would block the pool.
    """
    try:
        clip = encode_clip(record, pattern=pattern, **options)
    except VideoError as error:
        frame = "" if error.frame is None else f"frame {error.frame}: "
        return f"{frame}{error.cause}"
    if transfer is None:
        return clip, None
    handle, path = tempfile.mkstemp(dir=transfer)
    with naming(Path(path)), open(handle, "wb") as file:
        file.write(clip.data)
    return replace(clip, data=b""), Path(path)


def _receive(clip: EncodedClip, path: Path | None) -> EncodedClip:
    if path is None:
        return clip
    data = path.read_bytes()
    path.unlink()
    return replace(clip, data=data)


@contextmanager
def _transfer_folder(store: Path) -> Iterator[Path]:
    """A folder for the clips on their way from the workers to the writer."""
    folder = store / TRANSFER
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed pack
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _progress(*, enabled: bool) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), disable=not enabled)


def check_options(
    format: str = "jpeg",
    short_side: int = 256,
    quality: int = QUALITY,
    shard_mib: int = 256,
    workers: int = 0,
    timeout: float = TIMEOUT,
) -> None:
    """Raise ValueError for options of `pack` that are out of range."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; expected one of {', '.join(FORMATS)}")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality is {quality}; expected 1 … 100")
    check_timeout(timeout)
    for name, value, least in (
        ("short_side", short_side, 1),
        ("shard_mib", shard_mib, 1),
        ("workers", workers, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
