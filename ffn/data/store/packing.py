"""Packing a data set into a clip store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock, Timeout
from torch.utils.data import DataLoader, Dataset

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN, VideoError
from ffn.data.loader import worker_start_method
from ffn.data.store.clip import EncodedClip, encode_clip
from ffn.data.store.layout import FORMS, Manifest, StoreError, Unreadable, key_of
from ffn.data.store.writer import LOCK, StoreWriter
from ffn.data.workers import end_with_parent

if TYPE_CHECKING:
    from rich.progress import Progress

QUALITY = 90
LOCK_TIMEOUT = 3  # seconds: workers of a pack that was killed end within one


@dataclass
class PackReport:
    """What `pack` did.

    Attributes:
        packed: Clips that were added.
        kept: Clips asked for that were in the store before, from an earlier or a killed run.
        unreadable: The videos asked for that could not be packed, with the reason.
        clips: Clips of the whole store.
        frames: Frames of the whole store.
        bytes: Of all its shards.
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
    form: str = "jpeg",
    short_side: int = 256,
    quality: int = QUALITY,
    shard_mib: int = 256,
    pattern: str = PATTERN,
    workers: int = 0,
    append: bool = False,
    progress: bool = False,
) -> PackReport:
    """Pack videos into a clip store.

    Every frame of each record (of its time range, if it has one) is decoded, made smaller if its
    shorter side is longer than `short_side`, encoded, and written. A record that stands twice is
    packed once. A run that was killed is continued by calling again with the same arguments; the
    result is, byte for byte, that of a run that was not killed. A finished store is left as it is
    unless `append` is given; then records that it lacks are added, in shards of their own.

    Args:
        records: The videos, as `read_annotations` returns them, of one list or several.
        folder: Of the store; made if need be.
        root: Folder of the data set: clips are named by their paths from there, so that the data
            set and the store may move. Default: by their paths as they stand in the records.
        form: `jpeg`, or `raw` for small sets: uint8 RGB as it is.
        short_side: Length of the shorter side in pixels, at most. Videos are never enlarged.
        quality: Of the JPEGs, 1 to 100.
        shard_mib: Length of a shard in MiB, at most; a clip that is longer has one of its own.
        pattern: Name of a frame inside a folder of frames.
        workers: Processes that decode and encode; 0 does it in this one.
        append: Add to a finished store.
        progress: Show a progress bar.

    Returns:
        What was done; unreadable videos are listed there and in the store, and not packed.

    Raises:
        ValueError: if an option is outside its range or there is no record.
        StoreError: if `folder` holds a store made with other options, a finished store that lacks
            some of the records while `append` is False, or if another process packs into it.
        FileExistsError: if `folder` holds other files.
    """
    if not records:
        raise ValueError("records is empty; expected at least one video")
    _check_options(form, short_side, quality, shard_mib, workers)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "form": form,
        "short_side": short_side,
        "quality": quality if form == "jpeg" else None,
    }
    root = None if root is None else os.fspath(root)
    wanted = {(key_of(r.path, root), r.start, r.end): r for r in reversed(records)}
    wanted = dict(reversed(wanted.items()))  # the first of those that stand twice
    try:
        with FileLock(folder / LOCK, timeout=LOCK_TIMEOUT):
            writer = StoreWriter(folder, options, shard_bytes=shard_mib * 2**20, append=append)
            try:
                return _pack(wanted, writer, pattern, workers, progress)
            finally:
                writer.close()
    except Timeout:
        raise StoreError(f"another process packs into {folder}; wait until it is done") from None


def _pack(
    wanted: dict[tuple, Record], writer: StoreWriter, pattern: str, workers: int, progress: bool
) -> PackReport:
    missing = {name: record for name, record in wanted.items() if name not in writer.known}
    report = PackReport(kept=len(wanted) - len(missing))
    if writer.finished:
        report.unreadable = [one for one in writer.manifest.unreadable if one[:3] in missing]
        failed = {one[:3] for one in report.unreadable}
        new = [name for name in missing if name not in failed]
        if new:
            raise StoreError(
                f"{writer.folder} is a finished store and lacks {len(new)} of the videos, as "
                f"{new[0][0]}; add them with append (--append), or name another folder"
            )
    else:
        encoder = _Encoder(list(missing.values()), pattern, writer.manifest)
        clips = _encoded(encoder, workers)
        with _progress(enabled=progress) as bar:
            task = bar.add_task("packing", total=len(wanted), completed=report.kept)
            for (key, start, end), (clip, reason) in zip(missing, clips, strict=True):
                if clip is None:
                    report.unreadable.append(Unreadable(key, start, end, reason))
                else:
                    writer.add(key, start, end, missing[key, start, end].label, clip)
                    report.packed += 1
                bar.advance(task)
        writer.finish(report.unreadable)
    manifest = writer.manifest
    report.clips, report.frames = manifest.clips, manifest.frames
    report.bytes = sum(shard.bytes for shard in manifest.shards)
    return report


class _Encoder(Dataset[tuple[EncodedClip | None, str]]):
    """Each record as a clip, or None and the reason why it cannot be read."""

    def __init__(self, records: Sequence[Record], pattern: str, manifest: Manifest) -> None:
        self.records, self.pattern = records, pattern
        self.options = {
            "form": manifest.form,
            "short_side": manifest.short_side,
            "quality": manifest.quality,
        }

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[EncodedClip | None, str]:
        record = self.records[index]
        try:
            return encode_clip(record, pattern=self.pattern, **self.options), ""
        except VideoError as error:
            where = "" if error.frame is None else f"frame {error.frame}: "
            return None, f"{where}{error.cause}"


def _encoded(encoder: _Encoder, workers: int) -> Iterator[tuple[EncodedClip | None, str]]:
    """What an encoder returns, in order, made by several processes a little ahead."""
    if not len(encoder):
        return iter(())
    return iter(
        DataLoader(
            encoder,
            batch_size=None,
            num_workers=workers,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # torch's global random state is left alone
            multiprocessing_context=worker_start_method() if workers else None,
            worker_init_fn=_sit_down,
        )
    )


def _sit_down(worker: int) -> None:
    end_with_parent()


def _as_it_is(item: tuple[EncodedClip | None, str]) -> tuple[EncodedClip | None, str]:
    return item


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


def _check_options(form: str, short_side: int, quality: int, shard_mib: int, workers: int) -> None:
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(FORMS)}")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality is {quality}; expected 1 … 100")
    for name, value, least in (
        ("short_side", short_side, 1),
        ("shard_mib", shard_mib, 1),
        ("workers", workers, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
