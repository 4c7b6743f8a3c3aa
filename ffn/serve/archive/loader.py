"""Read the clips of a list chunk by chunk; a video that ends or blocks a worker is an error row."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ffn.data import LoaderError, VideoError
from ffn.data.loader import worker_start_method
from ffn.data.records import Record, SharedRecords
from ffn.data.watched_loader import WatchedLoader, WorkerStatus, watching
from ffn.data.workers import Failure, map_in_processes
from ffn.serve.clips import Clip, ClipReader

Item = tuple[int, Clip | str]
"""Index of a video, and its clip or why there is none."""


def load_chunks(
    records: Sequence[Record],
    reader: ClipReader,
    chunks: Sequence[range],
    *,
    workers: int,
    timeout: float,
) -> Iterator[list[Item]]:
    """Read the videos of each chunk, in order.

    Args:
        records: the videos.
        reader: reads their clips.
        chunks: indices of the videos of each chunk.
        workers: processes that read; 0 reads in this process, where a video can end or block it.
        timeout: seconds for a chunk, with workers.

    Yields:
        The clip of each video of a chunk, or why there is none.

    Raises:
        LoaderError: a worker ended or blocked, and none of the videos that were being read does so
            when it is read again.
    """
    dataset, left = _Videos(records, reader), list(chunks)
    while left:
        loader = _loader(dataset, left, workers, timeout)
        failure, suspects = None, []
        try:
            with watching(loader):
                for chunk in loader:
                    with _without_handler():
                        del left[0]
                        yield chunk.unpack()
        except LoaderError as error:
            # Without its traceback, which keeps the workers: they end before others start.
            failure = LoaderError(str(error))
            suspects = sorted({*loader.reading()} - {*dataset.bad})
        with _without_handler():
            del loader  # ends its workers
        if failure is not None:
            with _without_handler():
                bad = _find_bad(dataset, suspects, timeout)
            if not bad:
                raise failure
            dataset.bad |= bad


@contextmanager
def _without_handler() -> Iterator[None]:
    """Remove torch's handler of ended workers, which raises its error anywhere, for the caller.

    `WatchedLoader` looks for ended workers when it goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


class _Videos(Dataset):
    """Reads the clips of a list; a video that cannot be read is the cause."""

    def __init__(self, records: Sequence[Record], reader: ClipReader) -> None:
        self.records = SharedRecords(records)
        self.reader = reader
        self.bad: dict[int, str] = {}  # videos that end or block a worker
        self.worker_status: WorkerStatus | None = None  # set in workers

    def __getitem__(self, index: int) -> Item:
        if index in self.bad:
            return index, self.bad[index]
        if self.worker_status is not None:
            self.worker_status.begin(index)
        found = _read((self.reader, self.records[index]))
        if self.worker_status is not None:
            self.worker_status.end()
        return index, found


def _read(job: tuple[ClipReader, Record]) -> Clip | str:
    """The clip of a video, or why there is none."""
    reader, record = job
    try:
        return reader.read(record.path, record.start, record.end)
    except VideoError as error:
        frame = "" if error.frame is None else f"frame {error.frame}: "
        return f"{frame}{error.cause}"


def _try(job: tuple[ClipReader, Record]) -> None:
    """Read a video, in a process that may end or block."""
    _read(job)


def _find_bad(dataset: _Videos, suspects: Sequence[int], timeout: float) -> dict[int, str]:
    """Of the videos that workers were reading, those that end or block a process of their own."""
    jobs = [(dataset.reader, dataset.records[index]) for index in suspects]
    results = [result for _, result in map_in_processes(_try, jobs, 1, timeout)]
    found = zip(suspects, results, strict=True)
    return {index: str(result) for index, result in found if isinstance(result, Failure)}


@dataclass(frozen=True)
class _Chunk:
    """The clips of a chunk; those of one shape are one tensor, which passes between processes."""

    items: Sequence[Item]  # clips without pixels
    stacks: Sequence[Tensor]  # (B, C, T, H, W)
    places: Sequence[tuple[int, int]]  # stack and row of each clip

    def unpack(self) -> list[Item]:
        """The clips with their pixels."""
        places = iter(self.places)
        found = []
        for index, item in self.items:
            if isinstance(item, Clip):
                stack, row = next(places)
                item = replace(item, pixels=self.stacks[stack][row])
            found.append((index, item))
        return found


def _pack(items: Sequence[Item]) -> _Chunk:
    groups: dict[tuple[int, ...], list[Tensor]] = {}
    light, found = [], []
    for index, item in items:
        if isinstance(item, Clip):
            shape = tuple(item.pixels.shape)
            group = groups.setdefault(shape, [])
            found.append((shape, len(group)))
            group.append(item.pixels)
            item = replace(item, pixels=torch.empty(0))
        light.append((index, item))
    order = {shape: number for number, shape in enumerate(groups)}
    places = [(order[shape], row) for shape, row in found]
    return _Chunk(light, [torch.stack(group) for group in groups.values()], places)


def _loader(dataset: _Videos, chunks: Sequence[range], workers: int, timeout: float) -> DataLoader:
    common = {"batch_sampler": list(chunks), "collate_fn": _pack}
    if not workers:
        return DataLoader(dataset, **common)
    return WatchedLoader(
        dataset,
        num_workers=workers,
        timeout=timeout,
        persistent_workers=True,  # so that the loader knows its workers
        multiprocessing_context=worker_start_method(),
        **common,
    )
