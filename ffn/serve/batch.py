"""Predict a list of videos into one table, in several processes, and resumed after a stop.

The list is divided into chunks of consecutive videos, each one batch of the network, so that the
numbers depend on neither the processes nor interruptions. Every process appends the rows of its
chunks to a file of its own in the folder ``OUTPUT.parts``. A later call keeps the complete ones.
When all are there, the first process writes the table.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ffn.data import VideoError
from ffn.data.annotations import to_record
from ffn.data.lists import is_video, read_list
from ffn.data.records import Record
from ffn.evaluation.collect import gather
from ffn.files import atomic_write, printable, write_text
from ffn.serve.choose_frames import Always
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.inputs import is_address
from ffn.serve.output import columns, error_row, prediction_row
from ffn.serve.prediction import NotFiniteError, Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.readers import Readers
from ffn.zoo import state_sha256

SUFFIXES = (".csv", ".parquet")
ROW_GROUP = 10_000  # rows of a Parquet file that are written together


@dataclass(frozen=True)
class BatchOptions:
    """How a list is predicted.

    Attributes:
        frames, budget_ms, budget_gmacs: Number of frames, as for a predictor.
        labels: Most probable labels in a row.
        batch_size: Videos per forward pass.
        workers: Processes that decode, per process of the network; 0: none.
        timeout: Seconds for a video, with workers.
    """

    frames: int | str | None = None
    budget_ms: float | None = None
    budget_gmacs: float | None = None
    labels: int = 5
    batch_size: int = 16
    workers: int = 0
    timeout: float = 600.0

    def choice(self) -> dict[str, Any]:
        """What chooses the number of frames, as arguments of `Predictor.reader`."""
        names = ("frames", "budget_ms", "budget_gmacs")
        return {name: getattr(self, name) for name in names}


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


@dataclass(frozen=True)
class VideoList:
    """The videos of a list.

    Attributes:
        records: With paths that can be opened.
        names: Paths as the list has them, for the table.
    """

    records: Sequence[Record]
    names: Sequence[str]

    @classmethod
    def read(cls, path: Path, root: str | os.PathLike[str] | None = None) -> VideoList:
        """Read a list: a table with a column ``path``, or a path per line.

        Args:
            path: The list.
            root: Folder that relative paths start from; default: that of the list.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it has no video, or a line is invalid.
        """
        if is_video(path.name):
            raise ValueError(
                f"{path} is a video; with --output, the file is a list of videos, a path per line "
                "or a table with the column path. Leave --output out for single videos"
            )
        rows = read_list(path, labelled=False)
        base = path.parent if root is None else Path(root)
        # An address stays as it is; as part of a path it would begin with "./".
        bases = ["" if is_address(row.path) else base for row in rows]
        records = [to_record(row, 0, own) for row, own in zip(rows, bases, strict=True)]
        return cls(records, [row.path for row in rows])

    def digest(self) -> str:
        """A hash of the paths, times and numbers of frames."""
        digest = hashlib.sha256()
        for name, record in zip(self.names, self.records, strict=True):
            path = record.path if is_address(record.path) else os.path.abspath(record.path)
            line = repr((name, path, record.start, record.end, record.frames))
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def predict_batch(
    build: Callable[[str | None], Predictor],
    videos: VideoList,
    output: Path,
    options: BatchOptions = BatchOptions(),
    *,
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
        output: The table, ``.csv`` or ``.parquet``; replaced when it is complete.
        options: Frames, labels, batches and workers.
        rank: Of this process.
        size: Number of processes.
        progress: Called in every process with its videos so far, and all of its videos.

    Returns:
        Counts of rows, the same in every process.

    Raises:
        ValueError: if the folder ``OUTPUT.parts`` belongs to another list, network or options.
        OSError: if a file cannot be written.
        ImportError: if the package for ``.parquet`` is not installed.
    """
    count, step = len(videos.records), options.batch_size
    chunks = [range(n, min(n + step, count)) for n in range(0, count, step)]
    parts = _Parts(output.with_name(f"{output.name}.parts"), chunks)
    predictor, settings, done = None, None, None
    if rank == 0:
        check_table(output)
        predictor, settings = _settle(build, videos, options, parts)
        done = set(parts.places())
    settings, done = gather((settings, done))[0]
    predictor = predictor or build(settings["precision"])
    run = _Run(predictor, _reader(predictor, options, settings["count"]), videos, options)

    todo = [n for n in range(len(chunks)) if n not in done][rank::size]
    finished, total = 0, sum(len(chunks[n]) for n in todo)
    progress(finished, total)
    with parts.append() as add:
        for number, rows in zip(todo, run.rows([chunks[n] for n in todo]), strict=True):
            add(number, rows)
            finished += len(rows)
            progress(finished, total)
    gather(None)  # all rows are written
    result = None
    if rank == 0:
        errors = sum(row[-1] is not None for row in parts.rows())
        write_table(output, columns(options.labels), parts.rows())
        parts.remove()
        result = BatchResult(count, sum(len(chunks[n]) for n in done), errors)
    return gather(result)[0]


def _settle(
    build: Callable[[str | None], Predictor],
    videos: VideoList,
    options: BatchOptions,
    parts: _Parts,
) -> tuple[Predictor, dict[str, Any]]:
    """The predictor, and what all processes and later calls need to compute alike."""
    predictor = build(None)
    asked = {
        "weights": state_sha256(predictor.model.state_dict()),
        "list of videos": videos.digest(),
        **{k: v for k, v in asdict(options).items() if k not in ("workers", "timeout")},
        "network": predictor.network,
        "pattern": predictor.pattern,
    }
    begun = parts.settings()
    if begun is not None:
        differing = [key for key in asked if begun["asked"].get(key) != asked[key]]
        if differing:
            raise ValueError(
                f"{parts.folder} was begun with another value of: {', '.join(differing)}. Repeat "
                "the first command, name another output, or remove the folder"
            )
        return build(begun["precision"]), begun
    choose = predictor.reader(**options.choice()).choose
    count = [choose.count, choose.why] if isinstance(choose, Always) else None
    precision = predictor.resolve_precision(count[0] if count else predictor.counts[-1])
    settings = {"asked": asked, "precision": precision, "count": count}
    parts.write_settings(settings)
    return predictor, settings


def _reader(predictor: Predictor, options: BatchOptions, count: list | None) -> ClipReader:
    """What reads the clips; a count that the first process has chosen is taken from it."""
    if count is None:
        return predictor.reader(**options.choice())
    return ClipReader(predictor.preprocessing, predictor.pattern, Always(*count))


@dataclass(frozen=True)
class _Run:
    """Reads and predicts chunks of a list."""

    predictor: Predictor
    reader: ClipReader
    videos: VideoList
    options: BatchOptions

    def rows(self, chunks: Sequence[range]) -> Iterator[list[list[Any]]]:
        """The rows of each chunk."""
        for chunk, found in zip(chunks, self._read(chunks), strict=True):
            answers = self._answers(found)
            yield [self._row(n, answer) for n, answer in zip(chunk, answers, strict=True)]

    def _read(self, chunks: Sequence[range]) -> Iterator[list[Clip | str]]:
        """The clip of each video, or why there is none; workers read some videos ahead."""
        workers, records = self.options.workers, self.videos.records
        ahead = 1 + 4 * workers // self.options.batch_size
        with Readers(workers, self.options.timeout) if workers else nullcontext() as pool:
            waiting: deque[list[Callable[[], Clip | str]]] = deque()
            for chunk in chunks:
                waiting.append([self._begin(pool, records[n]) for n in chunk])
                if len(waiting) > (ahead if workers else 0):
                    yield [_outcome(clip) for clip in waiting.popleft()]
            for left in waiting:
                yield [_outcome(clip) for clip in left]

    def _begin(self, pool: Readers | None, record: Record) -> Callable[[], Clip]:
        """Begin to read a video; the function that is returned gives its clip."""
        if pool is None:
            return partial(self.reader.read, record.path, record.start, record.end)
        wait = pool.submit([self.reader], record.path, start=record.start, end=record.end)
        return lambda: wait()[0]

    def _answers(self, found: Sequence[Clip | str]) -> list[Prediction | str]:
        """The prediction of each clip, or why it has none; clips of one shape run together."""
        answers: list[Prediction | str] = []
        for shape, same in groupby(found, lambda x: isinstance(x, Clip) and x.pixels.shape):
            group = list(same)
            answers += self._predict(group) if shape else group
        return answers

    def _predict(self, clips: Sequence[Clip]) -> list[Prediction | str]:
        try:
            return self.predictor.predict(clips)
        except NotFiniteError as error:
            if len(clips) == 1:
                return [str(error)]
            return [answer for clip in clips for answer in self._predict([clip])]

    def _row(self, number: int, answer: Prediction | str) -> list[Any]:
        record, name = self.videos.records[number], self.videos.names[number]
        labels = self.options.labels
        if isinstance(answer, str):
            return error_row(name, answer, labels, record.start, record.end)
        return [name, record.start, record.end, *prediction_row(answer, labels)[3:]]


def _outcome(clip: Callable[[], Clip]) -> Clip | str:
    try:
        return clip()
    except VideoError as error:
        frame = "" if error.frame is None else f"frame {error.frame}: "
        return f"{frame}{error.cause}"


class _Parts:
    """A folder with the rows of complete chunks.

    A chunk is a line of JSON. Its process writes it at once and never changes it; a line that a
    stopped process has cut does not count.

    Args:
        folder: Of the parts; may not exist yet.
        chunks: Videos of each chunk.
    """

    def __init__(self, folder: Path, chunks: Sequence[range]) -> None:
        self.folder, self._chunks = folder, chunks
        self._settings = folder / "settings.json"

    def settings(self) -> dict[str, Any] | None:
        """The settings of the run; None for a new one."""
        try:
            return json.loads(self._settings.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            text = f"{self._settings} is damaged ({error}); remove {self.folder}"
            raise ValueError(text) from None

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Make the folder, and keep the settings for later calls."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self._settings, json.dumps(settings, indent=1) + "\n", sync=True)

    @contextmanager
    def append(self) -> Iterator[Callable[[int, list[list[Any]]], None]]:
        """Open a new file of this process; gives a function that appends the rows of a chunk."""
        handle, _ = tempfile.mkstemp(prefix="rows-", suffix=".jsonl", dir=self.folder)
        with os.fdopen(handle, "wb") as file:

            def add(chunk: int, rows: list[list[Any]]) -> None:
                file.write(json.dumps({"chunk": chunk, "rows": rows}).encode() + b"\n")
                file.flush()

            yield add

    def places(self) -> dict[int, tuple[Path, int]]:
        """File and position of each complete chunk."""
        found: dict[int, tuple[Path, int]] = {}
        for path in self._files():
            position = 0
            with path.open("rb") as file:
                for line in file:
                    with suppress(ValueError):  # a line that is cut
                        entry = json.loads(line)
                        found.setdefault(entry["chunk"], (path, position))
                    position += len(line)
        return found

    def rows(self) -> Iterator[list[Any]]:
        """The rows of all chunks, in their order.

        Raises:
            RuntimeError: if chunks are missing.
        """
        places = self.places()
        missing = len(self._chunks) - len(places)
        if missing:
            raise RuntimeError(f"{missing} chunks of {self.folder} are missing")
        with ExitStack() as stack:
            files = {path: stack.enter_context(path.open("rb")) for path in self._files()}
            for path, position in (places[n] for n in range(len(self._chunks))):
                files[path].seek(position)
                yield from json.loads(files[path].readline())["rows"]

    def remove(self) -> None:
        """Remove the files, and the folder unless it has other files."""
        for path in [*self._files(), self._settings]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # NFS keeps files that are open, under another name
            self.folder.rmdir()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("rows-*.jsonl"))


def check_table(path: Path) -> None:
    """Check the suffix of a table, and that its package is installed.

    Raises:
        ValueError: if the suffix is another one.
        ImportError: if pyarrow, for Parquet, is not installed.
    """
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise ValueError(f"the table is {path}; expected a file *{' or *'.join(SUFFIXES)}")
    if kind == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ImportError(
            f'the table {path} needs pyarrow: pip install "frame-flexible[parquet]", or write a '
            ".csv file"
        )


def write_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows piece by piece as CSV or Parquet; None is an empty cell."""
    if path.suffix.lower() == ".csv":
        with atomic_write(path, "w") as file:
            csv.writer(file, lineterminator="\n").writerows([names])
            csv.writer(file, lineterminator="\n").writerows(rows)
        return
    import pyarrow as pa
    from pyarrow import parquet

    numbers = dict.fromkeys(("start", "end"), pa.float64())
    numbers |= dict.fromkeys(("frames", "sub_network"), pa.int32())
    kinds = [
        numbers.get(name, pa.float32() if "probability" in name else pa.string()) for name in names
    ]
    schema, rows = pa.schema(zip(names, kinds, strict=True)), iter(rows)
    with atomic_write(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, ROW_GROUP)):
            texts = [[printable(x) if isinstance(x, str) else x for x in row] for row in group]
            arrays = [pa.array(x, k) for x, k in zip(zip(*texts, strict=True), kinds, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))
