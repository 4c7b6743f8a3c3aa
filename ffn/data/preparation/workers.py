"""One function over many files, in processes that a broken file may kill."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, TypeVar

Job = TypeVar("Job")

CRASHED = "the decoder crashed"


def work(
    function: Callable[[Job], Any], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Any]]:
    """Outcomes of a function that catches its own errors, as they come in.

    A process that dies, as decoders do on some broken files, takes the jobs of its neighbours
    along: these run once more, one by one, and the one that dies again has the outcome `CRASHED`.

    Args:
        function: At the top of a module; takes one job.
        jobs: What to do.
        workers: Processes, started afresh: a script needs `if __name__ == "__main__"`. 0 works in
            this process, which then dies with the decoder.
    """
    if not workers:
        yield from ((job, function(job)) for job in jobs)
        return
    suspects: list[Job] = []
    waiting = list(jobs)[::-1]
    while waiting:
        running: dict[Future, Job] = {}
        with _pool(workers) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 4 * workers:
                        future = pool.submit(function, waiting[-1])
                        running[future] = waiting.pop()
                    yield from _finished(running)
            except BrokenProcessPool:
                suspects += running.values()
    while suspects:
        with _pool(1) as pool:
            try:
                while suspects:
                    yield suspects[-1], pool.submit(function, suspects[-1]).result()
                    suspects.pop()
            except BrokenProcessPool:
                yield suspects.pop(), CRASHED


def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Leave when the parent is killed; a worker would wait for its next job for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _finished(running: dict[Future, Job]) -> Iterator[tuple[Job, Any]]:
    """Outcomes of those that are done, which leave `running`; at least one."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        outcome = future.result()
        yield running.pop(future), outcome
