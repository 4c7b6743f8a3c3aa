"""Read clips in worker processes, which a bad file can end or block without harm."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.data import VideoError
from ffn.data.workers import memory_cause, start_forkserver, start_worker
from ffn.serve.clips import Clip, ClipReader, read_together
from ffn.serve.inputs import Input

if TYPE_CHECKING:
    from pebble import ProcessPool

END_SECONDS = 2.0  # for the processes to end


class BlockedError(VideoError):
    """A video took too long to read."""


class Readers(AbstractContextManager):
    """Worker processes that read clips; use it as a context.

    Args:
        workers: Number of processes.
        timeout: Seconds for a video.
        fork: Start them at once, as copies of this process, whose threads hold no locks.
    """

    def __init__(self, workers: int, timeout: float, *, fork: bool = False) -> None:
        from pebble import CONSTS, ProcessPool

        CONSTS.term_timeout = 0.1  # seconds from SIGTERM to SIGKILL; readers have nothing to save
        self._timeout, self._context = timeout, _context(fork)
        self._start_pool = partial(
            ProcessPool, workers, context=self._context, initializer=start_worker
        )
        self._pool, self._lock = self._start_pool(), threading.Lock()
        self.alive = True  # whether videos are still read

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        readers: Sequence[ClipReader],
        given: Input,
        start: float | None = None,
        end: float | None = None,
    ) -> Callable[[], list[Clip]]:
        """Begin to read a video; the result waits for the clip of each of the readers.

        The clips come through a file: a process that ends in the middle of a message would block
        the pipe of all.

        Args:
            readers: What reads the clips, one for each.
            given: The video.
            start, end: See :func:`ffn.serve.clips.read_together`.

        Returns:
            A function that raises VideoError if the video cannot be read or ends its process, or
            this is closed, and BlockedError if it takes too long.
        """
        from pebble import ProcessExpired

        folder = tempfile.TemporaryDirectory(prefix="ffn-clips-")
        path, name = Path(folder.name, "clips"), str(given)
        arguments = (tuple(readers), given, start, end, path)
        task = self._running_pool().schedule(_read, args=arguments, timeout=self._timeout)

        def wait() -> list[Clip]:
            ends = time.monotonic() + 2 * self._timeout  # with the wait for a free process
            with folder:
                while not task.done() and self.alive and time.monotonic() < ends:
                    wait_for([task], 0.5)
                if not (task.done() or self.alive):
                    raise VideoError(name, "the processes that read it have ended")
                try:
                    task.result(0)
                except FutureTimeoutError:
                    task.cancel()
                    cause = f"took more than {self._timeout:g} s to read"
                    raise BlockedError(name, cause) from None
                except (ProcessExpired, CancelledError, BrokenExecutor):
                    raise VideoError(name, "it ended the process that read it") from None
                return pickle.loads(path.read_bytes())

        return wait

    def read(self, readers: Sequence[ClipReader], given: Input) -> list[Clip]:
        """Read a video; arguments and errors as :meth:`submit`."""
        return self.submit(readers, given)()

    def start(self) -> None:
        """Start the processes, which takes seconds, before the first video comes."""
        # Waits for the imports of the fork server, without processes that need this one.
        first = self._context.Process(target=int, daemon=True)
        first.start()
        first.join()
        self._pool.schedule(int).result(600)

    def _running_pool(self) -> ProcessPool:
        """The pool; a new one if the processes ended, as by the system, while they had no video."""
        with self._lock:
            if self.alive and not self._pool.active:
                self._pool = self._start_pool()
            return self._pool

    def close(self) -> None:
        """End the processes; videos that are being read are given up."""
        self.alive = False
        self._pool.stop()
        # pebble's own limit is not kept by a pool that was stopped.
        joining = threading.Thread(target=self._pool.join, daemon=True)
        joining.start()
        joining.join(END_SECONDS)


def _context(fork: bool) -> multiprocessing.context.BaseContext:
    """How processes start: not by a fork of a service, whose threads may hold locks.

    A fork server imports the packages once, so that a process that was ended is replaced at once.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    if fork:
        return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "av"])
    start_forkserver()
    return context


def _read(
    readers: Sequence[ClipReader],
    given: Input,
    start: float | None,
    end: float | None,
    path: Path,
) -> None:
    """In a worker: write the clips of a video to a file."""
    try:
        path.write_bytes(pickle.dumps(read_together(readers, given, start, end)))
    except (MemoryError, RuntimeError) as error:  # a VideoError is one of the second
        if cause := memory_cause(error):
            raise VideoError(str(given), cause) from None
        raise
