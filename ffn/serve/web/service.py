"""Answer many requests at once with a few predictors, within limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ffn.data import VideoError
from ffn.files import explain
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.heat_maps import HeatMap
from ffn.serve.prediction import NotFiniteError, Prediction
from ffn.serve.predictor import Predictor
from ffn.serve.web.batcher import Batcher
from ffn.serve.web.containers import ACCEPTED, HEAD_BYTES, container_of
from ffn.serve.web.reading import AtMost, Blocked, Readers, TooLongError


@dataclass(frozen=True)
class Limits:
    """What a service accepts.

    Attributes:
        mebibytes: size of a file.
        seconds: duration of a video.
        frames: number of frames of a clip.
        counts: numbers of frames in one request.
        timeout: seconds for each of receiving a file, reading it and running the network.
        requests: requests at a time; others are refused at once.
    """

    mebibytes: float = 100.0
    seconds: float = 600.0
    frames: int = 64
    counts: int = 8
    timeout: float = 30.0
    requests: int = 32


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: HTTP status.
        message: a sentence for people.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


@dataclass(frozen=True)
class Query:
    """What is asked about a video.

    Attributes:
        model: name of the weights; None for the first.
        frames: numbers of frames, or "auto"; empty for the largest trained count.
        budget_ms, budget_gmacs: in place of numbers of frames, see :class:`ffn.Predictor`.
    """

    model: str | None = None
    frames: Sequence[int | str] = ()
    budget_ms: float | None = None
    budget_gmacs: float | None = None


@dataclass(frozen=True)
class Answer:
    """A prediction of a service.

    Attributes:
        prediction: of the clip.
        clip: that the network saw.
        gmacs: giga multiply-accumulates of the forward pass.
    """

    prediction: Prediction
    clip: Clip
    gmacs: float


class Service:
    """Predictors that answer many requests at once.

    Videos are read in worker processes, so that a bad file neither ends nor blocks the service.
    The clips that wait for a network run in batches, each of one number of frames. Any number of
    threads may call a service.

    Args:
        predictors: by the name of their weights.
        limits: what is accepted.
        workers: processes that read videos.
        batch_size: largest number of clips in a forward pass.

    Raises:
        ValueError: there is no predictor, or one needs more frames than are accepted.
    """

    def __init__(
        self,
        predictors: Mapping[str, Predictor],
        *,
        limits: Limits | None = None,
        workers: int = 2,
        batch_size: int = 8,
    ) -> None:
        if not predictors:
            raise ValueError("there is no predictor; expected at least one")
        self.predictors, self.limits = dict(predictors), limits or Limits()
        for name, predictor in predictors.items():
            if not predictor.knows_trained_frames:
                raise ValueError(
                    f"{name} is a plain network, and its record does not say how many frames it "
                    "was trained with; a service needs this. Add the line `config: {task: {frames: "
                    "[8]}}`, with your number, to the record, the .yaml next to the weights"
                )
            if predictor.counts[-1] > self.limits.frames:
                accepted = f"{self.limits.frames} frames are accepted at most"
                raise ValueError(
                    f"{accepted}; {name} needs up to {predictor.counts[-1]}. Accept as many"
                )
        self._places = threading.BoundedSemaphore(self.limits.requests)
        self._heat_maps = threading.Lock()
        self._readers = Readers(workers, self.limits.timeout)
        self._batchers = {
            name: Batcher(predictor.predict, batch_size) for name, predictor in predictors.items()
        }

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Fuse the networks, choose their precision, measure them and start the processes."""
        for predictor in self.predictors.values():
            predictor.warm_up(predictor.trained_frames)
            predictor.latencies()  # for budgets: beside requests, the times would be too long
        self._readers.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are answered."""
        return self._readers.alive and all(batcher.alive for batcher in self._batchers.values())

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the requests that are answered at a time.

        Raises:
            Refusal: there is none.
        """
        if not self._places.acquire(blocking=False):
            busy = f"{self.limits.requests} requests are being answered; try again in a second"
            raise Refusal(503, busy, {"Retry-After": "1"})
        try:
            yield
        finally:
            self._places.release()

    def models(self) -> list[dict[str, Any]]:
        """What clients need to know of each network, as JSON values."""
        return [_describe(name, predictor) for name, predictor in self.predictors.items()]

    def predict(self, path: Path, query: Query, name: str = "the video") -> list[Answer]:
        """The answer for each number of frames that is asked for.

        Args:
            path: the video, alone in its folder, where the service writes.
            query: what is asked.
            name: of the video, for the prediction and for messages.

        Raises:
            Refusal: with the status 400 for a query that is not possible, 413 or 415 for a video
                that is not accepted, 422 for one that cannot be read, 504 if it takes too long,
                and 500 if the network's logits are not finite.
        """
        model, readers = self._readers_of(query)
        self._check_file(path, name)
        try:
            clips = self._readers.read(readers, path, name)
        except TooLongError as error:
            raise Refusal(413, str(error)) from error
        except VideoError as error:
            raise Refusal(422, str(error)) from error
        except Blocked as error:
            raise Refusal(504, f"{error}; try a shorter or smaller video") from error
        futures = [self._batchers[model].submit(clip) for clip in clips]
        try:
            ends = time.monotonic() + self.limits.timeout
            found = [future.result(max(0.0, ends - time.monotonic())) for future in futures]
        except FutureTimeoutError:
            for future in futures:
                future.cancel()
            slow = f"the network took more than {self.limits.timeout:g} s; try fewer frames, or "
            raise Refusal(504, f"{slow}again later") from None
        except NotFiniteError as error:
            raise Refusal(500, str(error)) from error
        gmacs = self.predictors[model].gmacs
        return [
            Answer(prediction, clip, gmacs(prediction.frames))
            for prediction, clip in zip(found, clips, strict=True)
        ]

    def heat_map(self, answer: Answer, model: str | None = None) -> HeatMap:
        """Where the network of an answer saw evidence for its most probable label.

        One heat map is computed at a time, because it needs several times the memory of a
        prediction.

        Args:
            answer: of this service.
            model: that gave it; None for the first.

        Raises:
            Refusal: with the status 400 for a network without feature maps, and 504 if others take
                too long.
        """
        if not self._heat_maps.acquire(timeout=self.limits.timeout):
            raise Refusal(504, "other heat maps take too long; try again later")
        try:
            label = answer.prediction.top(1)[0][0]
            return self.predictors[self._name(model)].heat_map(answer.clip, label=label)
        except ValueError as error:
            raise Refusal(400, str(error)) from error
        finally:
            self._heat_maps.release()

    def close(self) -> None:
        """End the processes and threads; requests that wait fail."""
        self._readers.close()
        for batcher in self._batchers.values():
            batcher.close()

    def _name(self, model: str | None) -> str:
        """The name of a network; None stands for the first."""
        if model is None:
            return next(iter(self.predictors))
        if model not in self.predictors:
            known = ", ".join(self.predictors)
            raise Refusal(400, f"there is no model {model!r}; the models are {known}")
        return model

    def _readers_of(self, query: Query) -> tuple[str, list[ClipReader]]:
        """The network of a query, and what reads the clips."""
        model = self._name(query.model)
        for count in query.frames:
            if isinstance(count, int) and count > self.limits.frames:
                raise Refusal(400, f"frames is {count}; at most {self.limits.frames} are accepted")
        if len(query.frames) > self.limits.counts:
            given = f"{len(query.frames)} numbers of frames are asked for"
            raise Refusal(400, f"{given}; at most {self.limits.counts} are accepted")
        predictor, budgets = self.predictors[model], (query.budget_ms, query.budget_gmacs)
        try:
            readers = [
                predictor.reader(frames, budget_ms=budgets[0], budget_gmacs=budgets[1])
                for frames in query.frames or (None,)
            ]
        except (ValueError, TypeError) as error:
            raise Refusal(400, str(error)) from error
        longest = self.limits.seconds
        return model, [replace(r, choose=AtMost(r.choose, longest)) for r in readers]

    def _check_file(self, path: Path, name: str) -> None:
        """Raise Refusal for a file that is too large, or of a type that is not accepted."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError as error:
            raise Refusal(422, f"{name} cannot be read: {explain(error)}") from error
        self.check_size(size, name)
        if container_of(head) is None:
            what = "is empty" if not head else "is no video of a type that is accepted"
            raise Refusal(415, f"{name} {what}; accepted are {ACCEPTED}")

    def check_size(self, size: int, name: str = "the video") -> None:
        """Raise Refusal for a file of too many bytes."""
        if size > self.limits.mebibytes * 2**20:
            limit = f"at most {self.limits.mebibytes:g} MiB are accepted"
            raise Refusal(413, f"{name} has more bytes than are accepted; {limit}")


def _describe(name: str, predictor: Predictor) -> dict[str, Any]:
    return {
        "name": name,
        "classes": list(predictor.classes),
        "multi_label": predictor.record.multi_label,
        "trained_frames": predictor.trained_frames,
        "default_frames": predictor.default_frames,
        "gmacs": {str(count): predictor.gmacs(count) for count in predictor.trained_frames},
        "network": predictor.network,
    }
