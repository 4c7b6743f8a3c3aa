"""Predict a list of videos into one table, in several processes, and resumed after a stop.

The list is divided into chunks of consecutive videos, each one batch of the network, so that the
numbers depend on neither the processes nor interruptions. Every process appends the rows of its
chunks to a file of its own in the folder ``OUTPUT.parts``. A later call keeps the complete ones.
When all are there, the first process writes the table.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffn.data.annotation_rows import is_video
from ffn.data.annotations import to_record
from ffn.data.lists import read_paths
from ffn.data.records import Record
from ffn.evaluation.collect import gather
from ffn.serve.archive.features import FeatureTap
from ffn.serve.archive.loader import Item, load_chunks
from ffn.serve.archive.parts import Parts
from ffn.serve.archive.tables import open_table
from ffn.serve.choose_frames import Always
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.inputs import is_address
from ffn.serve.prediction import NotFiniteError, Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.report import columns, error_row, prediction_row
from ffn.zoo import state_sha256

HASHED = {"weights": "other weights", "list": "another list of videos"}


@dataclass(frozen=True)
class ArchiveOptions:
    """How a list is predicted.

    Attributes:
        frames, budget_ms, budget_gmacs: number of frames, as for a predictor.
        labels: most probable labels in a row.
        features: also the features before the classifier; the table is a ``.parquet`` file.
        batch_size: videos of a chunk.
        workers: processes that decode, per process of the network; 0: none.
        timeout: seconds for the videos of a chunk, with workers.
    """

    frames: int | str | None = None
    budget_ms: float | None = None
    budget_gmacs: float | None = None
    labels: int = 5
    features: bool = False
    batch_size: int = 16
    workers: int = 0
    timeout: float = 600.0

    def choice(self) -> dict[str, Any]:
        """What chooses the number of frames, as arguments of `Predictor.reader`."""
        names = ("budget_ms", "budget_gmacs")
        return {"frames": self.frames, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class ArchiveResult:
    """What a call did.

    Attributes:
        videos: rows of the table.
        kept: rows that an earlier call had computed.
        errors: videos that cannot be read.
    """

    videos: int
    kept: int
    errors: int


@dataclass(frozen=True)
class Listed:
    """The videos of a list.

    Attributes:
        records: with paths that can be opened.
        names: paths as the list has them, for the table.
        root: absolute path of the folder that relative paths start from.
    """

    records: Sequence[Record]
    names: Sequence[str]
    root: str

    @classmethod
    def read(cls, path: Path, root: str | os.PathLike[str] | None = None) -> Listed:
        """Read a list: a table with a column ``path``, or a path per line.

        Args:
            path: the list.
            root: folder that relative paths start from; default: that of the list.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it has no video, or a line is invalid.
        """
        if is_video(path.name):
            raise ValueError(
                f"{path} is a video; with --output, the file is a list of videos, a path per line "
                "or a table with the column path. Leave --output out for single videos"
            )
        rows = read_paths(path)
        base = path.parent if root is None else Path(root)
        # An address stays as it is; as part of a path it would begin with "./".
        bases = ["" if is_address(row.path) else base for row in rows]
        records = [to_record(row, 0, own) for row, own in zip(rows, bases, strict=True)]
        return cls(records, [row.path for row in rows], os.path.abspath(base))

    def digest(self) -> str:
        """A hash of the names, times and numbers of frames."""
        digest = hashlib.sha256()
        for name, record in zip(self.names, self.records, strict=True):
            line = repr((name, record.start, record.end, record.frames))
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def predict_archive(
    build: Callable[[str | None], Predictor],
    videos: Listed,
    output: Path,
    options: ArchiveOptions = ArchiveOptions(),
    *,
    rank: int = 0,
    size: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArchiveResult:
    """Predict a list of videos into a table; all processes call this.

    A video that cannot be read is a row with its cause in the column ``error``. So is one that
    ends or blocks a worker.

    Args:
        build: makes the predictor for a precision; None is the one that the user asked for. The
            first process resolves "auto", so that all compute alike.
        videos: of the table, in this order.
        output: the table, ``.csv`` or ``.parquet``; replaced when it is complete.
        options: frames, labels, batches and workers.
        rank: of this process.
        size: number of processes.
        progress: called in every process with its videos so far, and all of its videos.

    Returns:
        Counts of rows, the same in every process.

    Raises:
        ValueError: the folder ``OUTPUT.parts`` belongs to another list, network or options.
        FileExistsError: another call is writing to it.
        LoaderError: workers end again and again.
        OSError: a file cannot be written.
        ImportError: the package for ``.parquet`` is not installed.
    """
    parts = Parts(
        output.with_name(f"{output.name}.parts"),
        chunks_of(len(videos.records), options.batch_size),
    )
    with ExitStack() as stack:
        predictor, settings, done = None, None, None
        if rank == 0:
            open_table(output, _columns(options)).abort()  # its suffix, folder and package
            stack.enter_context(parts.lock())
            predictor, settings = _settle(build, videos, options, parts)
            done = sorted(parts.places())
        settings, done = gather((settings, done))[0]
        if predictor is None:
            predictor = build(settings["precision"])
        if settings["count"] is None:
            reader = predictor.reader(**options.choice())
        else:  # as the first process has found it
            choose = Always(*settings["count"])
            reader = ClipReader(predictor.preprocessing, predictor.pattern, choose)

        finished = set(done)
        todo = [n for n in range(len(parts.chunks)) if n not in finished][rank::size]
        _run(predictor, reader, videos, parts, todo, options, progress)
        gather(None)  # all rows are written
        result = None
        if rank == 0:
            errors = _write_table(parts, output, options)
            kept = sum(len(parts.chunks[number]) for number in done)
            result = ArchiveResult(len(videos.records), kept, errors)
        return gather(result)[0]


def chunks_of(videos: int, size: int) -> list[range]:
    """Indices of the videos of each batch."""
    return [range(start, min(start + size, videos)) for start in range(0, videos, size)]


def _columns(options: ArchiveOptions) -> list[str]:
    return [*columns(options.labels), *["features"] * options.features]


def _settle(
    build: Callable[[str | None], Predictor],
    videos: Listed,
    options: ArchiveOptions,
    parts: Parts,
) -> tuple[Predictor, dict[str, Any]]:
    """The predictor, and what all processes and later calls need to compute alike."""
    predictor = build(None)
    asked = {
        "weights": state_sha256(predictor.model.state_dict()),
        "videos": len(videos.records),
        "list": videos.digest(),
        "root": videos.root,
        **options.choice(),
        "labels": options.labels,
        "features": options.features,
        "batch_size": options.batch_size,
        "network": predictor.network,
        "pattern": predictor.pattern,
    }
    settings = parts.settings()
    if settings is not None:
        begun = settings["asked"]
        differing = [key for key in asked if begun.get(key) != asked[key]]
        if differing:
            key = differing[0]
            what = HASHED.get(key) or f"{key} {begun.get(key)!r}, now it is {asked[key]!r}"
            raise ValueError(
                f"{parts.folder} was begun with {what}; repeat the first command, name another "
                "output, or remove the folder"
            )
        return build(settings["precision"]), settings
    choose = predictor.reader(**options.choice()).choose
    count = [choose.count, choose.why] if isinstance(choose, Always) else None
    precision = predictor.resolve_precision(count[0] if count else predictor.counts[-1])
    settings = {"asked": asked, "precision": precision, "count": count}
    parts.write_settings(settings)
    return predictor, settings


def _run(
    predictor: Predictor,
    reader: ClipReader,
    videos: Listed,
    parts: Parts,
    todo: Sequence[int],
    options: ArchiveOptions,
    progress: Callable[[int, int], None],
) -> None:
    """Compute chunks and append their rows to a new file of this process."""
    chunks = [parts.chunks[number] for number in todo]
    total, finished = sum(map(len, chunks)), 0
    tap = FeatureTap(len(predictor.classes)) if options.features else None
    loaded = load_chunks(
        videos.records, reader, chunks, workers=options.workers, timeout=options.timeout
    )
    progress(0, total)
    with parts.append() as add, closing(loaded):
        for number, items in zip(todo, loaded, strict=True):
            add(number, _rows(predictor, videos, items, options, tap))
            finished += len(items)
            progress(finished, total)


def _rows(
    predictor: Predictor,
    videos: Listed,
    items: Sequence[Item],
    options: ArchiveOptions,
    tap: FeatureTap | None,
) -> dict[str, Any]:
    """The rows of a chunk, and its features in base64 (float32, those of readable videos)."""
    clips = [item for _, item in items if isinstance(item, Clip)]
    predictions, features = [], []
    for batch in _same_shape(clips):
        answers, inputs = _predict(predictor, batch, tap)
        predictions += answers
        features += inputs
    left, rows = iter(predictions), []
    for index, item in items:
        record, name = videos.records[index], videos.names[index]
        answer = next(left) if isinstance(item, Clip) else item
        if isinstance(answer, Prediction):
            row = prediction_row(answer, options.labels)
            row[:3] = name, record.start, record.end
        else:
            row = error_row(name, answer, options.labels, record.start, record.end)
        rows.append(row)
    if tap is None:
        return {"rows": rows}
    joined = torch.cat(features).float().numpy() if features else np.zeros((0, 0), np.float32)
    return {"rows": rows, "features": base64.b64encode(joined.tobytes()).decode()}


def _predict(
    predictor: Predictor, batch: Sequence[Clip], tap: FeatureTap | None
) -> tuple[list[Prediction | str], list[Tensor]]:
    """The prediction of each clip, or why it has none; and the features of those that have."""
    try:
        with tap or nullcontext():
            found = predictor.predict(batch)
    except NotFiniteError as error:
        if len(batch) == 1:
            return [str(error)], []
        answers, inputs = zip(*(_predict(predictor, [clip], tap) for clip in batch), strict=True)
        return [*chain(*answers)], [*chain(*inputs)]
    return found, [tap.features(found)] if tap else []


def _same_shape(clips: Iterable[Clip]) -> Iterator[list[Clip]]:
    """Clips in groups of consecutive ones of a shape."""
    group: list[Clip] = []
    for clip in clips:
        if group and clip.pixels.shape != group[0].pixels.shape:
            yield group
            group = []
        group.append(clip)
    if group:
        yield group


def _write_table(parts: Parts, output: Path, options: ArchiveOptions) -> int:
    """Write the rows in the order of the list, remove the parts; returns the number of errors."""
    places = parts.places()
    missing = len(parts.chunks) - len(places)
    if missing:
        raise RuntimeError(f"{missing} of {len(parts.chunks)} parts of {output} are missing")
    errors, table = 0, open_table(output, _columns(options))
    try:
        for entry in parts.read(places):
            rows = entry["rows"]
            errors += sum(row[-1] is not None for row in rows)
            table.write(_with_features(rows, entry["features"]) if options.features else rows)
        table.close()
    except BaseException:
        table.abort()
        raise
    parts.remove()
    return errors


def _with_features(rows: Sequence[list[Any]], text: str) -> list[list[Any]]:
    readable = sum(row[-1] is None for row in rows)
    values = np.frombuffer(base64.b64decode(text), np.float32)
    each = iter(values.reshape(readable, -1) if readable else ())
    return [[*row, next(each) if row[-1] is None else None] for row in rows]
