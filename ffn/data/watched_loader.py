"""A DataLoader that names the videos of workers that hang or exit unexpectedly."""

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

from ffn.data.decoding import VideoError
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
            VideoError: if a video is unreadable; its message is that of the worker.
        """
        try:
            with watching(self):
                yield from super().__iter__()
        except VideoError as error:
            # torch puts the worker's traceback before the message.
            name = f"\n{VideoError.__module__}.{VideoError.__qualname__}: "
            raise VideoError(str(error).rpartition(name)[2].rstrip("\n")) from error

    def reading(self) -> list[int]:
        """The samples that workers are reading, or were when they ended."""
        return [index for _, index, _ in self._status.active()]

    def explain(self, cause: str) -> LoaderError:
        """A `LoaderError` with the cause and the videos that workers are reading."""
        videos = [
            f"worker {worker} has been reading {self.dataset.records[index].path} "
            f"for {seconds:.0f} s"
            for worker, index, seconds in self._status.active()
        ]
        if "timed out" in cause:
            cause = f"no batch within {self.timeout:g} s"
            advice = "check these videos with ffn check_data, or increase data.timeout"
        else:
            cause = f"a worker exited unexpectedly ({cause})"
            advice = (
                "check whether memory was exhausted, and check these videos with ffn check_data"
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
        LoaderError: if a worker exited or timed out; the message names the videos that the workers
            were reading.
    """
    try:
        yield
    except Exception as error:
        watched = [loader for loader in loaders if isinstance(loader, WatchedLoader)]
        cause = _worker_failure(error)
        if isinstance(error, LoaderError) or cause is None or not watched:
            raise
        reading = [loader for loader in watched if loader.reading()]
        raise (reading or watched)[0].explain(cause) from error


def _worker_failure(error: BaseException | None) -> str | None:
    """The cause by which torch reports a failed worker, or None.

    Torch raises it at any place, also where the code around it then raises another error. A
    connection to a worker breaks if the worker exits while it sends a batch.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and str(error).startswith("DataLoader "):
            return str(error).splitlines()[0].removeprefix("DataLoader ").strip(" .")
        is_lost = isinstance(error, (ConnectionResetError, EOFError))
        if is_lost and " in DataLoader worker process " not in str(error):
            return str(error) or "connection lost"
        error = error.__cause__ or error.__context__
    return None


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
