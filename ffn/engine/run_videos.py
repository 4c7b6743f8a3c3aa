"""The videos of a run: a list that is kept in its folder, to notice changes on resume."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ffn.data import Record, Splits, label_text
from ffn.data.suffixes import is_system_name
from ffn.engine.checkpoints import RunError
from ffn.engine.distributed import World, on_main
from ffn.files import atomic_write

NAME = "videos.csv.gz"  # in the folder of the run
THREADS = 16  # that ask for file sizes; a network file system answers each after a millisecond


class ListedVideo(NamedTuple):
    """A line of the list; all values are text, empty where there is none.

    Attributes:
        split: ``train`` or ``val``.
        path: relative to the root if it is inside.
        label: class index; class indices separated by ``|`` in lists with several labels.
        frames: number of frames of a folder.
        start: of the time range, in seconds.
        end: of the time range, in seconds.
        content: length of the file in bytes; number of files in a folder; length and checksum of a
            clip in a store.
    """

    split: str
    path: str
    label: str
    frames: str
    start: str
    end: str
    content: str


class RunVideos:
    """Compares the lists of a run with those that it began with.

    Args:
        folder: of the run.
        splits: the lists now.
        root: folder of the videos.
        world: the processes; all of them call it.
        contents: function that describes the content of each record; default :func:`file_sizes`.

    Attributes:
        fingerprint: plain values, for checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        splits: Splits,
        root: str,
        world: World,
        contents: Callable[[Sequence[Record]], list[str]] | None = None,
    ) -> None:
        self.path, self._world = folder / NAME, world
        self._now: list[ListedVideo] = []  # on the main process

        def scan() -> str:
            self._now = list_videos(splits, root, contents or file_sizes)
            return hashlib.sha256(_to_csv(self._now)).hexdigest()

        self.fingerprint = {**splits.fingerprint(), "videos_sha256": on_main(scan, world)}

    def write(self) -> None:
        """Write the list into the folder. The main process calls it."""
        write_videos(self.path, self._now)

    def check(self, fingerprint: dict[str, Any], path: Path) -> None:
        """Compare with the fingerprint in a checkpoint. All processes call it.

        Raises:
            RunError: videos, labels or files differ; names the first difference.
        """
        names = {*fingerprint, *self.fingerprint} - {"prepared"}  # when the data set was prepared
        if any(fingerprint.get(name) != self.fingerprint.get(name) for name in names):
            change = on_main(self._first_change, self._world)
            raise RunError(
                f"{path} was trained on other videos or labels than data.root lists now: {change}. "
                "Restore the lists and the files, or choose another log.output"
            )

    def _first_change(self) -> str:
        try:
            before = read_videos(self.path)
        except (OSError, ValueError):
            return f"{self.path} cannot be read"
        for old, new in zip_longest(before, self._now):
            if old == new:
                continue
            if old is None or new is None or old.path != new.path:
                shown = [f"{row.split} {row.path}" if row else "none" for row in (old, new)]
                return f"first {shown[0]}, now {shown[1]}"
            pairs = zip(ListedVideo._fields, old, new, strict=True)
            changed = (f"{name} {a or 'none'} -> {b or 'none'}" for name, a, b in pairs if a != b)
            return f"first {new.split} {new.path} ({', '.join(changed)})"
        return "the class names"


def list_videos(
    splits: Splits, root: str | Path, contents: Callable[[Sequence[Record]], list[str]]
) -> list[ListedVideo]:
    """List the videos of a run, those of training first.

    Args:
        splits: training and validation videos.
        root: folder that the paths are relative to.
        contents: function that describes the content of each record.
    """
    start = os.path.join(os.path.abspath(root), "")
    listed = []
    for split, records in (("train", splits.train), ("val", splits.val)):
        for record, content in zip(records, contents(records), strict=True):
            path = os.path.abspath(record.path).removeprefix(start)
            values = (label_text(record.label), record.frames, record.start, record.end)
            texts = ["" if value is None else str(value) for value in values]
            listed.append(ListedVideo(split, path, *texts, content))
    return listed


def file_sizes(records: Sequence[Record]) -> list[str]:
    """Bytes of each file, or number of files in a folder; empty for a missing file."""

    def size(record: Record) -> str:
        try:
            if os.path.isdir(record.path):
                names = os.listdir(record.path)
                return f"{sum(not is_system_name(name) for name in names)} files"
            return str(os.stat(record.path).st_size)
        except OSError:
            return ""

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(size, records, chunksize=256))


def write_videos(path: Path, videos: Sequence[ListedVideo]) -> None:
    """Write a list as a compressed csv."""
    with atomic_write(path) as file:
        file.write(gzip.compress(_to_csv(videos), mtime=0))


def read_videos(path: Path) -> list[ListedVideo]:
    """Read the list of a run.

    Raises:
        OSError: the file is missing or damaged.
        ValueError: it is not such a list.
    """
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")
    try:
        _, *rows = csv.reader(io.StringIO(text, newline=""))
        return [ListedVideo(*row) for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the list of a run ({error})") from error


def _to_csv(videos: Sequence[ListedVideo]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([ListedVideo._fields, *videos])
    return text.getvalue().encode("utf-8", "surrogateescape")
