"""Worker processes that apply a function to many files, and end with their parent."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch

from ffn.limits import READER_BYTES

Job = TypeVar("Job")

TIMEOUT = 600.0  # seconds per file
LONGEST_TIMEOUT = 30 * 86400


class Failure(str):
    """Why a job has no result: its process timed out or exited. A second attempt may succeed."""


def map_in_processes(
    function: Callable[[Job], Any],
    jobs: Iterable[Job],
    workers: int,
    timeout: float = TIMEOUT,
) -> Iterator[tuple[Job, Any]]:
    """Apply a function to each job; yield jobs and results in the order of the jobs.

    Results pass through a pipe that all workers share. Return small ones: a process that exits in
    the middle of a message blocks the pipe.

    Args:
        function: A function at module level that handles its own exceptions.
        jobs: Its arguments.
        workers: Number of processes. 0 runs the function in this process, without timeout and
            without protection against crashes.
        timeout: Seconds per job.

    Yields:
        A job and its result. The result is a `Failure` if the process exited or timed out.

    Raises:
        ValueError: if the timeout is not above 0 and at most 30 days.
    """
    if not 0 < timeout <= LONGEST_TIMEOUT:  # NaN too
        raise ValueError(f"timeout is {timeout:g}; expected above 0, at most {LONGEST_TIMEOUT} s")
    if not workers:
        yield from ((job, function(job)) for job in jobs)
        return
    from pebble import ProcessPool

    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(start)
    with ProcessPool(workers, context=context, initializer=start_worker) as pool:
        pending: deque = deque()
        waiting = iter(jobs)
        try:
            while True:
                for job in islice(waiting, 4 * workers - len(pending)):
                    pending.append((job, pool.schedule(function, args=(job,), timeout=timeout)))
                if not pending:
                    break
                job, future = pending.popleft()
                yield job, _result(future, timeout)
        except BaseException:
            pool.stop()  # cancel the remaining jobs
            raise


def _result(future: Any, timeout: float) -> Any:
    from pebble import ProcessExpired

    try:
        return future.result()
    except FutureTimeoutError:
        return Failure(f"timed out after {timeout:g} s")
    except ProcessExpired as error:
        code = error.exitcode
        cause = signal.Signals(-code).name if -code in [*signal.Signals] else f"exit code {code}"
        memory = ", out of memory?" if cause == "SIGKILL" else ""
        return Failure(f"the worker process exited unexpectedly ({cause}{memory})")


def start_worker() -> None:
    """Set up a worker process: one thread for torch, limited memory; it ends with its parent."""
    torch.set_num_threads(1)  # as in a DataLoader worker: one core per process
    end_with_parent()
    used = Path("/proc/self/statm")  # Linux; its first number are pages
    if used.exists():
        most = int(used.read_text().split()[0]) * resource.getpagesize() + READER_BYTES.value
        with suppress(ValueError):  # a lower limit, of the user
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def memory_cause(error: BaseException | None) -> str:
    """Why a job that reached the limit of memory failed; empty if it failed otherwise."""
    # Readers report other errors in place of it; torch's has no class.
    while not isinstance(error, MemoryError) and "allocate memory" not in str(error):
        if error is None:
            return ""
        error = error.__context__
    return (
        f"needs more memory than the {READER_BYTES.value:,} bytes that a reading process may take "
        f"(raise the limit with the environment variable {READER_BYTES.variable})"
    )


def start_forkserver() -> None:
    """Start the fork server; its processes never get Ctrl-C, which the terminal sends to all."""
    resource_tracker.ensure_running()  # of the fork server; it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def kill_workers(but: Collection[BaseProcess]) -> None:
    """End this process's workers at once, but not others; for the end of a program.

    At its end, Python waits without limit for a worker that is stopped, or that waits for a disk.
    """
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's would raise for each
    workers = [worker for worker in multiprocessing.active_children() if worker not in but]
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(1)
    signal.signal(signal.SIGCHLD, before)


def end_with_parent() -> None:
    """Send this process SIGTERM when its parent has ended, as when that was killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
