"""Predict a list of videos into one table, in several processes, and resumed after a stop.

The list is divided into chunks of consecutive videos, each one batch of the network, so that the
numbers depend on neither the processes nor interruptions. The rows of a chunk are a file in the
folder ``OUTPUT.parts``, which a later call keeps. When all are there, the first process writes the
table.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ffn.data import VideoError
from ffn.data.annotations import to_record
from ffn.data.lists import is_video, read_list
from ffn.data.records import Record
from ffn.evaluation.collect import gather
from ffn.files import atomic_write, without_password, write_text
from ffn.serve.choose_frames import Always
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.inputs import is_address
from ffn.serve.output import cells, columns
from ffn.serve.prediction import NotFiniteError, Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.readers import Readers
from ffn.zoo import state_sha256

NAMES = {"encoding": "utf-8", "errors": "surrogateescape"}  # of files, that may be no UTF-8
Videos = Sequence[tuple[str, Record]]
"""The path of each video as the list has it, and a record whose path can be opened."""


@dataclass(frozen=True)
class BatchResult:
    """What a call did.

    Attributes:
        videos: Rows of the table.
        kept: Rows that an earlier call had computed.
        errors: Videos that cannot be read.
    """

    videos: int
    kept: int
    errors: int


def read_videos(path: Path, root: str | os.PathLike[str] | None = None) -> Videos:
    """Read a list: a table with a column ``path``, or a path per line.

    Relative paths start from ``root``; default: the folder of the list.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it has no video, or a line is invalid.
    """
    if is_video(path.name):
        raise ValueError(
            f"{path} is a video; with --output, the file is a list of videos, a path per line or a "
            "table with the column path. Leave --output out for single videos"
        )
    base = path.parent if root is None else Path(root)
    # An address stays as it is; as part of a path it would begin with "./".
    return [
        (row.path, to_record(row, 0, "" if is_address(row.path) else base))
        for row in read_list(path, labelled=False)
    ]


def predict_batch(
    build: Callable[[str | None], Predictor],
    videos: Videos,
    output: Path,
    choice: Mapping[str, Any],
    *,
    labels: int = 5,
    batch_size: int = 16,
    workers: int = 0,
    timeout: float = 600.0,
    rank: int = 0,
    size: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BatchResult:
    """Predict a list of videos into a table; all processes call this.

    A video that cannot be read, or that ends or blocks a worker, is a row with its cause.

    Args:
        build: Makes the predictor for a precision; None is the one that the user asked for. The
            first process resolves "auto", so that all compute alike.
        videos: Of the table, in this order.
        output: The table, ``.csv``; replaced when it is complete.
        choice: What chooses the number of frames, as arguments of a predictor.
        labels: Most probable labels in a row.
        batch_size: Videos per forward pass.
        workers: Processes that decode, per process of the network; 0: none.
        timeout: Seconds for a video, with workers.
        rank, size: Of this process, and of all.
        progress: Called in every process with its videos so far, and all of its videos.

    Returns:
        Counts of rows, the same in every process.

    Raises:
        ValueError: if the folder ``OUTPUT.parts`` belongs to another list, network or options, or
            another call writes it.
        OSError: if a file cannot be written.
    """
    chunks = [videos[n : n + batch_size] for n in range(0, len(videos), batch_size)]
    parts = _Parts(output.with_name(f"{output.name}.parts"))
    with ExitStack() as stack:
        predictor, settings, kept = None, None, 0
        if rank == 0:
            stack.enter_context(parts.locked())
            given = {"list of videos": _digest(videos), "labels": labels, "batch_size": batch_size}
            predictor, settings = _settle(build, choice, given, parts)
            kept = sum(len(chunks[n]) for n in parts.done())
        settings = gather(settings)[0]
        predictor = predictor or build(settings["precision"])
        reader = predictor.reader(**choice)
        if settings["count"] is not None:  # a budget of time may give another one here
            reader = replace(reader, choose=Always(*settings["count"]))

        done = parts.done()
        todo = [n for n in range(rank, len(chunks), size) if n not in done]
        finished, total = 0, sum(len(chunks[n]) for n in todo)
        progress(finished, total)
        records = [record for n in todo for _, record in chunks[n]]
        found = read_clips(records, reader, workers, timeout, ahead=batch_size + 4 * workers)
        for number in todo:
            clips = list(islice(found, len(chunks[number])))
            parts.add(number, predict_rows(predictor, chunks[number], clips, labels))
            finished += len(clips)
            progress(finished, total)
        gather(None)  # all rows are written
        errors = 0
        if rank == 0:
            errors = parts.write_table(output, labels, len(chunks))
    return gather(BatchResult(len(videos), kept, errors))[0]


def _settle(
    build: Callable[[str | None], Predictor],
    choice: Mapping[str, Any],
    given: Mapping[str, Any],
    parts: _Parts,
) -> tuple[Predictor, dict[str, Any]]:
    """The predictor, and what all processes and later calls need to compute alike."""
    predictor = build(None)
    asked = {
        "weights": state_sha256(predictor.model.state_dict()),
        **choice,
        **given,
        "network": predictor.network,
        "pattern": predictor.pattern,
    }
    begun = parts.settings()
    if begun is not None:
        keys = asked.keys() | begun["asked"].keys()
        differing = sorted(key for key in keys if begun["asked"].get(key) != asked.get(key))
        if differing:
            raise ValueError(
                f"{parts.folder} was begun with another value of: {', '.join(differing)}. Repeat "
                "the first command, name another output, or remove the folder"
            )
        return build(begun["precision"]), begun
    choose = predictor.reader(**choice).choose
    count = [choose.count, choose.why] if isinstance(choose, Always) else None
    precision = predictor.resolve_precision(count[0] if count else predictor.counts[-1])
    settings = {"asked": asked, "precision": precision, "count": count}
    parts.write_settings(settings)
    return predictor, settings


def _digest(videos: Videos) -> str:
    """A hash of the paths, times and numbers of frames."""
    digest = hashlib.sha256()
    for name, record in videos:
        path = record.path if is_address(record.path) else os.path.abspath(record.path)
        digest.update(repr((name, path, record.start, record.end, record.frames)).encode())
    return digest.hexdigest()


def read_clips(
    records: Sequence[Record], reader: ClipReader, workers: int, timeout: float, ahead: int
) -> Iterator[Clip | str]:
    """Read the clip of each video, or why there is none; workers read so many videos ahead."""
    if not workers:
        for record in records:
            yield _outcome(partial(reader.read, record.path, record.start, record.end))
        return
    with Readers(workers, timeout) as pool:
        waiting: deque[Callable[[], list[Clip]]] = deque()
        for record in records:
            waiting.append(pool.submit([reader], record.path, record.start, record.end))
            if len(waiting) > ahead:
                yield _outcome(waiting.popleft())
        yield from map(_outcome, waiting)


def _outcome(read: Callable[[], Clip | list[Clip]]) -> Clip | str:
    try:
        found = read()
    except VideoError as error:
        frame = "" if error.frame is None else f"frame {error.frame}: "
        return f"{frame}{error.cause}"
    return found if isinstance(found, Clip) else found[0]


def predict_rows(
    predictor: Predictor, videos: Videos, found: Sequence[Clip | str], labels: int
) -> list[list[Any]]:
    """Predict videos, with the result of :func:`read_clips` for each, as one batch.

    Returns:
        The cells of a row per video, as :func:`ffn.serve.output.columns` names them.
    """
    answers = iter(_predict(predictor, [clip for clip in found if isinstance(clip, Clip)]))
    rows = []
    for (name, record), clip in zip(videos, found, strict=True):
        answer = clip if isinstance(clip, str) else next(answers)
        rows.append([without_password(name), record.start, record.end, *cells(answer, labels)])
    return rows


def _predict(predictor: Predictor, clips: Sequence[Clip]) -> list[Prediction | str]:
    """The prediction of each clip, or that its logits are not finite."""
    try:
        return list(predictor.predict_all(clips, max(1, len(clips))))
    except NotFiniteError as error:
        if len(clips) == 1:
            return [str(error)]
        return [answer for clip in clips for answer in _predict(predictor, [clip])]


class _Parts:
    """A folder with a table without header for each complete chunk, by its number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._settings, self._lock = folder / "settings.json", folder / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder, and keep other calls from writing it.

        Raises:
            ValueError: if another call writes it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self._lock, timeout=0):
                yield
        except Timeout:
            raise ValueError(
                f"another call writes {self.folder}; wait for it, or name another output"
            ) from None

    def settings(self) -> dict[str, Any] | None:
        """The settings of the run; None for a new one."""
        try:
            return json.loads(self._settings.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Keep the settings for later calls."""
        write_text(self._settings, json.dumps(settings, indent=1) + "\n", sync=True)

    def done(self) -> set[int]:
        """The numbers of the complete chunks."""
        return {int(path.stem) for path in self.folder.glob("*.csv")}

    def add(self, chunk: int, rows: list[list[Any]]) -> None:
        """Write the rows of a chunk."""
        with atomic_write(self._path(chunk), "w", sync=True) as file:
            csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)

    def write_table(self, output: Path, labels: int, chunks: int) -> int:
        """Write the table of so many chunks and remove the folder; returns the number of errors."""
        errors = 0
        with atomic_write(output, "w") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(columns(labels))
            for chunk in range(chunks):
                with self._path(chunk).open(newline="", **NAMES) as part:
                    for row in csv.reader(part):
                        table.writerow(row)
                        errors += row[-1] != ""
        cut = self.folder.glob(".*.part")  # of killed processes
        for path in [*map(self._path, range(chunks)), *cut, self._settings, self._lock]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # NFS keeps files that are open, under another name
            self.folder.rmdir()
        return errors

    def _path(self, chunk: int) -> Path:
        return self.folder / f"{chunk}.csv"
