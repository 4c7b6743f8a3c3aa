"""Which sample each worker of a loader is at, so that one that hangs or dies can be named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ffn.data.workers import end_with_parent

_NOTHING = -1


class LoaderError(RuntimeError):
    """A worker took too long or ended; the message names the videos that workers were at."""


class Desks:
    """One line per worker in memory that all processes share: its sample, and since when.

    Args:
        workers: Number of them.
    """

    def __init__(self, workers: int) -> None:
        self._sample = torch.full((workers,), _NOTHING, dtype=torch.int64).share_memory_()
        self._since = torch.zeros(workers, dtype=torch.float64).share_memory_()

    def take(self, index: int) -> None:
        """Note, in a worker, that it starts with a sample."""
        info = get_worker_info()
        if info is not None:
            self._since[info.id] = time.monotonic()  # one clock for all processes
            self._sample[info.id] = index

    def clear(self) -> None:
        """Note, in a worker, that it is done."""
        info = get_worker_info()
        if info is not None:
            self._sample[info.id] = _NOTHING

    def taken(self) -> list[tuple[int, int, float]]:
        """Worker, sample and seconds that it has taken so far, for each that is at one."""
        now = time.monotonic()
        pairs = zip(self._sample.tolist(), self._since.tolist(), strict=True)
        return [(w, index, now - since) for w, (index, since) in enumerate(pairs) if index >= 0]


class WatchedLoader(DataLoader):
    """A DataLoader that names the videos of workers that hang or die.

    Args:
        dataset: One with an attribute `desks` that its items note themselves at, and `records`.
        num_workers: At least 1.
        **options: As `torch.utils.data.DataLoader`; `timeout` is what to wait for a batch, in
            seconds, 0 for ever.
    """

    def __init__(self, dataset: Dataset, *, num_workers: int, **options: Any) -> None:
        self._desks = Desks(num_workers)
        super().__init__(
            dataset,
            num_workers=num_workers,
            worker_init_fn=partial(_sit_down, self._desks),
            **options,
        )

    def __iter__(self) -> Iterator[Any]:
        """Batches.

        Raises:
            LoaderError: if no batch comes in time, or a worker has ended.
        """
        batches = super().__iter__()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                # What torch says of its workers; an error of a sample comes as it was raised.
                if not str(error).startswith("DataLoader "):
                    raise
                raise LoaderError(self._explain(str(error))) from error
            yield batch

    @property
    def has_lost_a_worker(self) -> bool:
        """Whether one of its processes has ended without being told to."""
        workers = getattr(self._iterator, "_workers", ())
        return any(not worker.is_alive() for worker in workers)

    def _explain(self, message: str) -> str:
        paths = [
            f"worker {worker} has been at {self.dataset.records[index].path} for {seconds:.0f} s"
            for worker, index, seconds in self._desks.taken()
        ]
        if "timed out" in message:
            cause = f"no batch came for {self.timeout:g} s"
            advice = "look at them with tools/check_data.py, or raise data.timeout"
        else:
            first = message.splitlines()[0].removeprefix("DataLoader ").strip(" .")
            cause = f"a worker ended ({first})"
            advice = "was memory short? Look at them with tools/check_data.py"
        return f"{cause}; {'; '.join(paths) or 'no worker was at a video'}; {advice}"


@contextmanager
def watching(*loaders: DataLoader) -> Iterator[None]:
    """Explain a death of a worker that comes while the process computes.

    torch raises it then from wherever the process is, by a handler of the system's signal.

    Args:
        loaders: those in use; such without workers are left alone.

    Raises:
        LoaderError: a worker has ended; the message names the videos that they were at.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LoaderError) or not str(error).startswith("DataLoader "):
            raise
        watched = [loader for loader in loaders if isinstance(loader, WatchedLoader)]
        lost = [loader for loader in watched if loader.has_lost_a_worker] or watched
        if not lost:
            raise
        raise LoaderError(lost[0]._explain(str(error))) from error


def _sit_down(desks: Desks, worker: int) -> None:
    """Begin, in a worker: what it must not share with the process that trains.

    That process may have handlers for signals, which a fork inherits: a worker would outlive the
    SIGTERM that ends it. And a signal to the whole process group, as Ctrl-C sends, is for the run
    to answer, which finishes its step and needs the workers for that.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    end_with_parent()
    get_worker_info().dataset.desks = desks
