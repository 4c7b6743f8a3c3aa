"""Read clips of uploaded files in worker processes, which a bad file can end or block."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ffn.data import VideoError
from ffn.data.workers import start_worker
from ffn.serve.clips import Choice, Clip, ClipReader, Part


class TooLongError(VideoError):
    """A video of a longer duration than is accepted."""


class Blocked(Exception):
    """A video took too long to read."""


@dataclass(frozen=True)
class AtMost:
    """Chooses as another choice does, for videos that are not too long.

    Attributes:
        choose: the other choice.
        seconds: longest duration.
    """

    choose: Choice
    seconds: float

    def __call__(self, part: Part) -> tuple[int, str]:
        """The number of frames, and why.

        Raises:
            TooLongError: the video is too long.
        """
        if part.seconds is not None and part.seconds > self.seconds:
            cause = f"it takes {part.seconds:.0f} s; at most {self.seconds:g} s are accepted"
            raise TooLongError("the video", cause)
        return self.choose(part)


class Readers:
    """Worker processes that read clips.

    Args:
        workers: number of processes.
        timeout: seconds for a video.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        from pebble import ProcessPool

        self._timeout = timeout
        self._pool = ProcessPool(workers, context=_context(), initializer=start_worker)

    def read(self, readers: Sequence[ClipReader], path: Path, name: str) -> list[Clip]:
        """The clip of each reader, of one video.

        The pixels come through files next to the video: a process that ends in the middle of a
        message would block the pipe of all.

        Args:
            readers: what reads the clips.
            path: the video, alone in its folder.
            name: of the video, for the clips and for errors.

        Raises:
            VideoError: the video cannot be read; a TooLongError, if `AtMost` refuses it.
            Blocked: reading took longer than the timeout.
        """
        from pebble import ProcessExpired

        task = self._pool.schedule(_read, args=(tuple(readers), path), timeout=self._timeout)
        try:
            found = task.result()
        except FutureTimeoutError:
            raise Blocked(f"{name} took more than {self._timeout:g} s to read") from None
        except ProcessExpired:
            raise VideoError(name, "it ended the process that read it") from None
        except VideoError as error:
            raise type(error)(name, error.cause, error.frame) from None
        return [
            Clip(**{**clip, "name": name, "pixels": torch.from_numpy(np.load(_file(path, n)))})
            for n, clip in enumerate(found)
        ]

    def start(self) -> None:
        """Start the processes, which takes seconds, before the first video comes."""
        self._pool.schedule(_nothing).result()

    @property
    def alive(self) -> bool:
        """Whether videos are still read."""
        return bool(self._pool.active)

    def close(self) -> None:
        """End the processes."""
        self._pool.stop()
        self._pool.join()


def _context() -> multiprocessing.context.BaseContext:
    """How processes start: not by a fork of this one, whose threads may hold locks.

    A fork server imports the packages once, so that a process that was ended is replaced at once.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "av"])
    return context


def _read(readers: Sequence[ClipReader], path: Path) -> list[dict[str, Any]]:
    """In a worker: write the pixels of clips to files; returns the other attributes."""
    clips = []
    for number, reader in enumerate(readers):
        clip = reader.read(path)
        np.save(_file(path, number), clip.pixels.numpy())
        clips.append({**vars(clip), "pixels": None})
    return clips


def _file(path: Path, number: int) -> Path:
    return path.with_name(f"clip-{number}.npy")


def _nothing() -> None:
    """A task that starts a worker."""
