"""A DataLoader whose errors name the videos of workers that hang or exit unexpectedly."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
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
        self._check_workers()
        try:
            batches = super().__iter__()
            while True:
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                self._check_workers()
        except VideoError as error:
            raise _error_of_worker(error) from error
        except (RuntimeError, ConnectionError, EOFError) as error:
            failure = _worker_failure(error) or self._broken_transfer(error)
            if failure is None:
                raise
            raise self.explain(failure) from error

    def reading(self) -> list[int]:
        """The samples that workers are reading, or were when they ended."""
        return [index for _, index, _ in self._status.active()]

    def has_dead_worker(self, wait: float = 0.0) -> bool:
        """Whether a worker has exited unexpectedly, now or within `wait` seconds.

        A sentinel is right also where an interrupted `Process.is_alive` has lost the exit status.
        """
        workers = getattr(self._iterator, "_workers", ())
        return bool(connection.wait([worker.sentinel for worker in workers], wait))

    def explain(self, error: BaseException) -> LoaderError:
        """A `LoaderError` with the cause and the videos that workers are reading."""
        message = str(error)
        videos = [
            f"worker {worker} has been reading {self.dataset.records[index].path} "
            f"for {seconds:.0f} s"
            for worker, index, seconds in self._status.active()
        ]
        if "timed out" in message:
            cause = f"no batch within {self.timeout:g} s"
            advice = "check these videos with ffn check_data, or increase data.timeout"
        else:
            reason = message.splitlines()[0].removeprefix("DataLoader ").strip(" .")
            cause = f"a worker exited unexpectedly ({reason})"
            advice = (
                "check whether memory was exhausted, and check these videos with ffn check_data"
            )
        return LoaderError(f"{cause}; {'; '.join(videos) or 'no worker was reading'}; {advice}")

    def _check_workers(self) -> None:
        """Raise `LoaderError` if a worker has exited.

        Torch reports it once, in a signal handler; Python discards the error of a handler that
        runs inside a hook, e.g. of `os.fork`, and torch would then wait until the timeout.
        """
        if self.has_dead_worker():
            raise self.explain(RuntimeError("worker has ended"))

    def _broken_transfer(self, error: BaseException) -> BaseException | None:
        """The error, if a worker exited while this process was receiving a batch from it."""
        if isinstance(error, RuntimeError) or " in DataLoader worker process " in str(error):
            return None
        try:
            ended = self.has_dead_worker(wait=1)  # the connection can close before the process ends
        except RuntimeError as notice:  # of the signal handler
            return _worker_failure(notice)
        return error if ended else None


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
    except Exception as error:
        failure = _worker_failure(error)
        if isinstance(error, LoaderError) or failure is None:
            raise
        watched = [loader for loader in loaders if isinstance(loader, WatchedLoader)]
        failed = [loader for loader in watched if loader.has_dead_worker()] or watched
        if not failed:
            raise
        raise failed[0].explain(failure) from error


def _worker_failure(error: BaseException | None) -> BaseException | None:
    """The error by which torch reports a failed worker, or None.

    Torch raises it at any place, also where the code around it then raises another error: an
    interrupted `torch.save` reports a file of the wrong length. An error of a sample keeps its type
    and message.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and str(error).startswith("DataLoader "):
            return error
        error = error.__cause__ or error.__context__
    return None


def _error_of_worker(error: VideoError) -> VideoError:
    """An error of a worker without the traceback that torch adds to its message."""
    name = f"{VideoError.__module__}.{VideoError.__qualname__}: "
    return VideoError(str(error).rpartition(f"\n{name}")[2].rstrip("\n"))


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
    sys.excepthook = _report_unless_disconnected
    get_worker_info().dataset.worker_status = status


def _report_unless_disconnected(
    kind: type[BaseException], error: BaseException, trace: Any
) -> None:
    """Print an error of a worker's thread, unless the training process has closed a connection.

    The thread that sends tensors prints such an error when the training process ends.
    """
    if not isinstance(error, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)
