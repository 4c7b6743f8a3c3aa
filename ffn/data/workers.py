"""One function over many files, in processes that a broken file may kill or hold up."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as TooSlow
from multiprocessing import connection
from typing import Any, TypeVar

Job = TypeVar("Job")

TIMEOUT = 600.0  # seconds that one file may take


class Broken(str):
    """What happened to a process, in place of an outcome; another time it may go well."""


def work(
    function: Callable[[Job], Any],
    jobs: Iterable[Job],
    workers: int,
    timeout: float = TIMEOUT,
) -> Iterator[tuple[Job, Any]]:
    """Each job with what the function makes of it, in their order.

    Args:
        function: At the top of a module; catches its own errors.
        jobs: What to do.
        workers: Processes; 0 works in this one, which then dies with the decoder or waits for it.
        timeout: Seconds that a job may take in a process.

    Yields:
        A job and its outcome, which is `Broken` if its process died or took too long.
    """
    if not workers:
        yield from ((job, function(job)) for job in jobs)
        return
    from pebble import ProcessPool

    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(start)
    with ProcessPool(workers, context=context, initializer=end_with_parent) as pool:
        waiting: deque = deque()
        try:
            for job in jobs:
                waiting.append((job, pool.schedule(function, args=(job,), timeout=timeout)))
                if len(waiting) >= 4 * workers:
                    job, future = waiting.popleft()
                    yield job, _outcome(future, timeout)
            while waiting:
                job, future = waiting.popleft()
                yield job, _outcome(future, timeout)
        except BaseException:
            pool.stop()  # nobody wants the rest
            raise


def _outcome(future: Any, timeout: float) -> Any:
    from pebble import ProcessExpired

    try:
        return future.result()
    except TooSlow:
        return Broken(f"took more than {timeout:g} s and was given up")
    except ProcessExpired as error:
        return Broken(f"ended the process that read it (exit code {error.exitcode})")


def end_with_parent() -> None:
    """Leave, in a worker, when the parent is killed: it would wait for its next job for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
