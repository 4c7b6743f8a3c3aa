"""A DataLoader whose errors name the videos of workers that hang or exit unexpectedly."""

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

_IDLE = -1


class LoaderError(RuntimeError):
    """A worker timed out or exited; the message names the videos that the workers were reading."""


class WorkerStatus:
    """The current sample of each worker and its start time, in shared memory.

    Args:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._samples = torch.full((workers,), _IDLE, dtype=torch.int64).share_memory_()
        self._started = torch.zeros(workers, dtype=torch.float64).share_memory_()

    def begin(self, index: int) -> None:
        """Record that this worker starts to read a sample; no effect outside of workers."""
        info = get_worker_info()
        if info is not None:
            self._started[info.id] = time.monotonic()  # one clock for all processes
            self._samples[info.id] = index

    def end(self) -> None:
        """Record that this worker is idle; no effect outside of workers."""
        info = get_worker_info()
        if info is not None:
            self._samples[info.id] = _IDLE

    def active(self) -> list[tuple[int, int, float]]:
        """Worker, sample, and seconds since its start, of each worker that is not idle."""
        now = time.monotonic()
        pairs = zip(self._samples.tolist(), self._started.tolist(), strict=True)
        return [(w, index, now - start) for w, (index, start) in enumerate(pairs) if index != _IDLE]


class WatchedLoader(DataLoader):
    """A DataLoader that raises `LoaderError` if a worker hangs or exits unexpectedly.

    Args:
        dataset: A dataset with `records` and an attribute `worker_status`, which is set in workers.
        num_workers: At least 1.
        **options: Options of `torch.utils.data.DataLoader`; `timeout` is the time to wait for a
            batch in seconds, 0 for no limit.
    """

    def __init__(self, dataset: Dataset, *, num_workers: int, **options: Any) -> None:
        self._status = WorkerStatus(num_workers)
        super().__init__(
            dataset,
            num_workers=num_workers,
            worker_init_fn=partial(_init_worker, self._status),
            **options,
        )

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches.

        Raises:
            LoaderError: if a batch exceeds the timeout, or a worker has exited unexpectedly.
        """
        batches = super().__iter__()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if not _is_worker_failure(error):
                    raise
                raise self.explain(error) from error
            yield batch

    @property
    def has_dead_worker(self) -> bool:
        """Whether a worker has exited unexpectedly."""
        workers = getattr(self._iterator, "_workers", ())
        return any(not worker.is_alive() for worker in workers)

    def explain(self, error: RuntimeError) -> LoaderError:
        """A `LoaderError` with the cause and the videos that workers are reading."""
        message = str(error)
        videos = [
            f"worker {worker} has been reading {self.dataset.records[index].path} "
            f"for {seconds:.0f} s"
            for worker, index, seconds in self._status.active()
        ]
        if "timed out" in message:
            cause = f"no batch within {self.timeout:g} s"
            advice = "check these videos with tools/check_data.py, or increase data.timeout"
        else:
            reason = message.splitlines()[0].removeprefix("DataLoader ").strip(" .")
            cause = f"a worker exited unexpectedly ({reason})"
            advice = (
                "check whether memory was exhausted, and check these videos with "
                "tools/check_data.py"
            )
        return LoaderError(f"{cause}; {'; '.join(videos) or 'no worker was reading'}; {advice}")


@contextmanager
def watching(*loaders: DataLoader) -> Iterator[None]:
    """Convert the error that torch raises when a worker exits into a `LoaderError`.

    torch raises it in a signal handler of the main process, anywhere in the code inside the
    context.

    Args:
        loaders: The loaders in use; those without workers are ignored.

    Raises:
        LoaderError: if a worker exited; the message names the videos that the workers were reading.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LoaderError) or not _is_worker_failure(error):
            raise
        watched = [loader for loader in loaders if isinstance(loader, WatchedLoader)]
        failed = [loader for loader in watched if loader.has_dead_worker] or watched
        if not failed:
            raise
        raise failed[0].explain(error) from error


def _is_worker_failure(error: RuntimeError) -> bool:
    """Whether torch reports a failed worker; an error of a sample keeps its type and message."""
    return str(error).startswith("DataLoader ")


def _init_worker(status: WorkerStatus, worker: int) -> None:
    """Set up a worker process: signal handlers, process group, worker status.

    A forked worker inherits the signal handlers of the training process, which would ignore the
    SIGTERM that ends it. SIGINT (Ctrl-C) goes to the whole process group; the training process
    handles it and still needs the workers to finish its step.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    end_with_parent()
    get_worker_info().dataset.worker_status = status
