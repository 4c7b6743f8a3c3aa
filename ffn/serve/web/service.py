"""Answer many requests at once with a few predictors, within limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from ffn.data import VideoError
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.prediction import NotFiniteError, Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.readers import BlockedError, Readers

COUNTS = 8  # numbers of frames in one request, at most


@dataclass(frozen=True)
class Limits:
    """What a service accepts.

    Attributes:
        max_mib: Size of a file in MiB.
        max_frames: Number of frames of a clip.
        max_requests: Requests at a time; others are refused at once.
        timeout: Seconds for each of receiving a file, reading it and running the network.
    """

    max_mib: float = 100.0
    max_frames: int = 64
    max_requests: int = 32
    timeout: float = 30.0


class Query(BaseModel):
    """What is asked about a video; the parameters of the endpoint.

    Attributes:
        model: Name of the weights; None for the first.
        frames: Numbers of frames, or "auto"; empty for the largest trained count.
        top: Number of labels in an answer of the endpoint.
        name: Of the video, for the prediction and for messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    frames: list[PositiveInt | Literal["auto"]] = Field([], max_length=COUNTS)
    top: int = Field(5, ge=1, le=1000)
    name: str = Field("the video", min_length=1, max_length=200)


class Service(AbstractContextManager):
    """Predictors that answer many requests at once.

    Videos are read in worker processes, so that a bad file neither ends nor blocks the service.
    Each network runs in a thread of its own. Any number of threads may call a service.

    Args:
        predictors: By the name of their weights; at least one.
        limits: What is accepted.
        workers: Processes that read videos.

    Raises:
        ValueError: if a predictor needs more frames than are accepted, or an unknown number.
    """

    def __init__(
        self,
        predictors: Mapping[str, Predictor],
        *,
        limits: Limits | None = None,
        workers: int = 2,
    ) -> None:
        self.predictors, self.limits = dict(predictors), limits or Limits()
        for name, predictor in predictors.items():
            if predictor.counts[-1] > self.limits.max_frames:
                accepted = f"{self.limits.max_frames} frames are accepted at most"
                raise ValueError(
                    f"{accepted}; {name} needs up to {predictor.counts[-1]}. Accept as many"
                )
        self._places = threading.BoundedSemaphore(self.limits.max_requests)
        self._readers = Readers(workers, self.limits.timeout)
        self._threads = {name: ThreadPoolExecutor(1, f"ffn-{name}") for name in predictors}
        self._closing, self._closed = threading.Lock(), Future()

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Fuse the networks, choose their precision and start the processes."""
        for predictor in self.predictors.values():
            predictor.warm_up(predictor.trained_frames)
        self._readers.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are answered."""
        return self._readers.alive and not self._closed.done()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the requests that are answered at a time.

        Raises:
            HTTPException: if there is none.
        """
        if not self._places.acquire(blocking=False):
            busy = f"{self.limits.max_requests} requests are being answered; try again in a second"
            raise HTTPException(503, busy, {"Retry-After": "1"})
        try:
            yield
        finally:
            self._places.release()

    def models(self) -> list[dict[str, Any]]:
        """What clients need to know of each network, as JSON values."""
        return [
            {
                "name": name,
                "classes": list(one.classes),
                "multi_label": one.record.multi_label,
                "trained_frames": one.trained_frames,
                "default_frames": one.default_frames,
                "gmacs": {str(count): one.gmacs(count) for count in one.trained_frames},
                "network": one.network,
            }
            for name, one in self.predictors.items()
        ]

    def predict(self, path: Path, query: Query) -> list[tuple[Prediction, Clip]]:
        """The prediction for each number of frames that is asked for, and its clip.

        Raises:
            HTTPException: with the status 400 for a query that is not possible, 413 for a
                file that is too large, 422 for one that cannot be read, 503 if the service
                ends, 504 if it takes too long, and 500 if the network's logits are not finite.
        """
        name, readers = query.name, self._clip_readers(query)
        self._check_file(path, name)
        try:
            clips = [replace(clip, name=name) for clip in self._readers.submit(readers, path)()]
            return list(zip(self._run(query, clips), clips, strict=True))
        except Exception as error:  # of a pool or an executor that closes, at any step
            if not self.healthy:
                raise HTTPException(503, "the service ends") from error
            if isinstance(error, BlockedError):
                slow = f"{name} {error.cause}; try a shorter or smaller video"
                raise HTTPException(504, slow) from error
            if isinstance(error, VideoError):
                cause = str(type(error)(name, error.cause, error.frame))
                raise HTTPException(422, cause) from error
            raise

    def close(self) -> None:
        """End the processes and threads; requests that wait fail."""
        with self._closing:
            if not self._closed.done():
                self._closed.set_result(None)
                for thread in self._threads.values():
                    thread.shutdown(wait=False, cancel_futures=True)
                self._readers.close()

    def check_size(self, size: int, name: str = "the video") -> None:
        """Refuse a file of too many bytes."""
        if size > self.limits.max_mib * 2**20:
            limit = f"at most {self.limits.max_mib:g} MiB are accepted"
            raise HTTPException(413, f"{name} has more bytes than are accepted; {limit}")

    def _run(self, query: Query, clips: Sequence[Clip]) -> list[Prediction]:
        """Predict each clip, in the thread of the network, within the limit and until the end."""
        name = self.model_of(query)
        predict, thread = self.predictors[name].predict, self._threads[name]
        ends, futures = time.monotonic() + self.limits.timeout, []
        try:
            futures += [thread.submit(predict, [clip]) for clip in clips]
            for future in futures:
                seconds = max(0.0, ends - time.monotonic())
                wait_for([future, self._closed], seconds, FIRST_COMPLETED)
            return [future.result(0)[0] for future in futures]
        except FutureTimeoutError:
            slow = f"the network took more than {self.limits.timeout:g} s; try fewer frames, or "
            raise HTTPException(504, f"{slow}again later") from None
        except NotFiniteError as error:
            raise HTTPException(500, str(error)) from error
        finally:
            for future in futures:
                future.cancel()

    def model_of(self, query: Query) -> str:
        """Name of the network that answers a query."""
        name = query.model or next(iter(self.predictors))
        if name not in self.predictors:
            known = ", ".join(self.predictors)
            raise HTTPException(400, f"there is no model {name!r}; the models are {known}")
        return name

    def _clip_readers(self, query: Query) -> list[ClipReader]:
        """What reads the clips of a query."""
        predictor = self.predictors[self.model_of(query)]
        counts, most = query.frames, self.limits.max_frames
        if any(count != "auto" and count > most for count in counts):
            raise HTTPException(400, f"frames is {counts}; at most {most} are accepted")
        return [predictor.reader(count) for count in counts or (None,)]

    def _check_file(self, path: Path, name: str) -> None:
        """Refuse a file that is too large, or none: opening a pipe could block."""
        if not path.is_file():
            raise HTTPException(422, f"{name} is not a regular file")
        self.check_size(path.stat().st_size, name)
