"""The videos of a training run as a list that is kept with it, to notice changes on resume."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ffn.data.records import Record, label_text
from ffn.data.splits import Splits
from ffn.data.suffixes import is_system_name
from ffn.files import atomic_write
from ffn.labels import SEPARATOR

FILES = " files, "  # in the content of a folder of frames
THREADS = 16  # that ask for file sizes; a network file system answers each after a millisecond


class ListedVideo(NamedTuple):
    """A line of the list; all values are text, empty where there is none.

    Attributes:
        split: ``train`` or ``val``.
        path: relative to the root if it is inside, whatever the spelling of both is.
        label: class index; class indices separated by ``|`` in lists with several labels.
        frames: number of frames of a folder.
        start: of the time range, in seconds.
        end: of the time range, in seconds.
        content: length of the file in bytes; number of files in a folder, and bytes of three of
            them; length and checksum of a clip in a store.
    """

    split: str
    path: str
    label: str
    frames: str
    start: str
    end: str
    content: str


def list_videos(
    splits: Splits,
    root: str | Path,
    contents: Callable[[Sequence[Record]], list[str]] | None = None,
) -> list[ListedVideo]:
    """List the videos of a run.

    Args:
        splits: training and validation videos.
        root: folder that the paths are relative to.
        contents: function that describes the content of each record; default :func:`file_sizes`.
    """
    records = [*splits.train, *splits.val]
    names = ["train"] * len(splits.train) + ["val"] * len(splits.val)
    found = (contents or file_sizes)(records)
    return [
        _listed(name, record, root, content)
        for name, record, content in zip(names, records, found, strict=True)
    ]


def as_before(videos: Sequence[ListedVideo], splits: Splits, root: str | Path) -> list[ListedVideo]:
    """A list of :func:`list_videos` as version 0.2 made it.

    Paths with another spelling stay, and folders have no content.
    """
    records = [*splits.train, *splits.val]
    return [
        video._replace(
            path=_as_written(record.path, root), content="" if _is_folder(video) else video.content
        )
        for video, record in zip(videos, records, strict=True)
    ]


def as_now(
    videos: Sequence[ListedVideo], root: str | Path, now: Sequence[ListedVideo] = ()
) -> list[ListedVideo]:
    """A list of :func:`list_videos`, of this version or of 0.2, as this version makes it.

    Version 0.2 listed no content of folders; they get that of the list now.
    """
    folders = {video._replace(content=""): video.content for video in now if _is_folder(video)}
    videos = [
        video._replace(path=_relative(os.path.join(root, video.path), root)) for video in videos
    ]
    return [video._replace(content=video.content or folders.get(video, "")) for video in videos]


def file_sizes(records: Sequence[Record]) -> list[str]:
    """The length of each file in bytes; empty for a missing file.

    Of a folder, the number of files, and the bytes of the first, middle and last one by name: the
    sizes of all frames would take several times as long. Hidden files do not count.
    """

    def size(record: Record) -> str:
        try:
            found = os.stat(record.path)
            is_folder = stat.S_ISDIR(found.st_mode)
            return _folder_size(record.path) if is_folder else str(found.st_size)
        except OSError:
            return ""

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(size, records, chunksize=256))


def _folder_size(folder: str) -> str:
    names = sorted(name for name in os.listdir(folder) if not is_system_name(name))
    few = sorted({0, len(names) // 2, len(names) - 1}) if names else []
    size = sum(os.stat(os.path.join(folder, names[n])).st_size for n in few)
    return f"{len(names)}{FILES}{size} bytes in {len(few)} of them"


def _is_folder(video: ListedVideo) -> bool:
    return FILES in video.content


def videos_sha256(videos: Sequence[ListedVideo]) -> str:
    """SHA-256 of a list, in hexadecimal."""
    return hashlib.sha256(_to_csv(videos).encode("utf-8", "surrogateescape")).hexdigest()


def write_videos(path: Path, videos: Sequence[ListedVideo]) -> None:
    """Write a list as a compressed csv."""
    data = _to_csv(videos).encode("utf-8", "surrogateescape")
    with atomic_write(path) as file:
        file.write(gzip.compress(data, mtime=0))


def read_videos(path: Path) -> list[ListedVideo]:
    """Read what :func:`write_videos` has written.

    Raises:
        ValueError: the file is damaged.
        FileNotFoundError: it is missing.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
        header, *rows = csv.reader(io.StringIO(text, newline=""))
        if tuple(header) != ListedVideo._fields:
            raise ValueError(f"columns {header}")
        return [ListedVideo(*row) for row in rows]
    except (gzip.BadGzipFile, zlib.error, EOFError, csv.Error, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def describe_changes(before: Sequence[ListedVideo], now: Sequence[ListedVideo]) -> list[str]:
    """What is different between two lists, a text for each kind of change, with an example."""
    found: dict[str, list[str]] = {}
    lost, new = Counter(before) - Counter(now), Counter(now) - Counter(before)
    replacing = {video[:2]: video for video in new}
    replaced = set()
    for old in lost.elements():
        other = replacing.get(old[:2])
        if other is None:
            found.setdefault("missing from the lists", []).append(_name(old))
            continue
        replaced.add(other)
        names = zip(ListedVideo._fields, old, other, strict=True)
        changes = [f"{name} {a or 'none'} -> {b or 'none'}" for name, a, b in names if a != b]
        text = ", ".join(changes)
        text = text.replace("content ", "" if _is_folder(old) or _is_folder(other) else "bytes ")
        same = "with other frames" if _is_folder(old) and _is_folder(other) else "with another file"
        kind = same if old[:-1] == other[:-1] else "changed"
        found.setdefault(kind, []).append(f"{_name(old)} ({text})")
    added = [_name(video) for video in new.elements() if video not in replaced]
    if added:
        found["new in the lists"] = added
    texts = [f"{len(names)} {kind}, first {names[0]}" for kind, names in found.items()]
    return texts or ([] if list(before) == list(now) else ["their order changed"])


def with_removed(
    splits: Splits, before: Sequence[ListedVideo], root: str | Path
) -> tuple[Splits, frozenset[int], list[ListedVideo]]:
    """The lists of a run with the videos that were taken out of them since it began.

    All videos keep their places, so that order and steps of the epochs do not change.

    Args:
        splits: the lists now.
        before: the list of the run, of this version or of 0.2.
        root: folder that the paths are relative to.

    Returns:
        The lists, the indices of the training videos that were taken out, and the lines of all
        that were taken out.
    """
    merged: dict[str, list[Record]] = {}
    removed, indices = [], []
    for split, records in (("train", splits.train), ("val", splits.val)):
        known: dict[ListedVideo, list[Record]] = {}
        for record in records:
            known.setdefault(_listed(split, record, root, ""), []).append(record)
        merged[split] = []
        written = [video for video in before if video.split == split]
        for old, video in zip(written, as_now(written, root), strict=True):
            here = known.get(video._replace(content=""))
            if not here:
                removed.append(video)
                indices += [len(merged[split])] if split == "train" else []
            record = here.pop(0) if here else _record(old, root, splits.multi_label)
            merged[split].append(record)
        merged[split] += [record for rest in known.values() for record in rest]
    whole = replace(splits, train=merged["train"], val=merged["val"])
    return whole, frozenset(indices), removed


def with_contents_of(
    before: Sequence[ListedVideo], now: Sequence[ListedVideo]
) -> list[ListedVideo]:
    """The list now, with the contents of the same videos before: files may be replaced or gone."""
    old = {video._replace(content=""): video for video in before}
    return [old.get(video._replace(content=""), video) for video in now]


def _listed(split: str, record: Record, root: str | Path, content: str) -> ListedVideo:
    path = _relative(record.path, root)
    values = (label_text(record.label), record.frames, record.start, record.end)
    return ListedVideo(split, path, *("" if v is None else str(v) for v in values), content)


def _relative(path: str, root: str | Path) -> str:
    """A path relative to the root; as it is written if it is outside."""
    folder, whole = os.path.join(os.path.abspath(root), ""), os.path.abspath(path)
    return whole.removeprefix(folder) if whole.startswith(folder) else _as_written(path, root)


def _as_written(path: str, root: str | Path) -> str:
    """A path without the root, if it begins with the characters of the root."""
    return path.removeprefix(os.path.join(Path(root), ""))


def _record(video: ListedVideo, root: str | Path, multi_label: bool) -> Record:
    labels = [int(label) for label in video.label.split(SEPARATOR) if label]
    label = tuple(labels) if multi_label else labels[0]
    frames = int(video.frames) if video.frames else None
    start, end = (float(time) if time else None for time in (video.start, video.end))
    return Record(os.path.join(root, video.path), label, frames, start, end)


def _name(video: ListedVideo) -> str:
    if not (video.start or video.end):
        return f"{video.split} {video.path}"
    end = f"{video.end} s" if video.end else "its end"
    return f"{video.split} {video.path} (from {video.start or 0} s to {end})"


def _to_csv(videos: Sequence[ListedVideo]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(_rows(videos))
    return text.getvalue()


def _rows(videos: Sequence[ListedVideo]) -> Iterator[Sequence[str]]:
    yield ListedVideo._fields
    yield from videos
