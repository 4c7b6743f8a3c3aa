"""Predict the labels of a stream while it runs."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ffn.data import EvalTransform
from ffn.serve.live.networks import Clips, Steps
from ffn.serve.live.rules import Frame, SteadyLabels, Window, mean_interval
from ffn.serve.live.sources import SHORTEST, Pace, SourceEvent, open_source
from ffn.serve.prediction import Prediction

if TYPE_CHECKING:
    from ffn.serve.predictor import Predictor

JOIN = 30.0  # seconds that close waits for a source that does not answer
MAX_LAG = 1.0  # seconds; frames that are later are dropped


@dataclass(frozen=True)
class LiveAnswer:
    """What a network says about the last seconds of a stream.

    Attributes:
        prediction: Of the window, with its probabilities as they are; ``frames``, ``active`` and
            ``why`` say how many frames, which sub-network and for what reason; ``indices`` counts
            the frames of the stream; ``start`` and ``end`` are seconds of the stream;
            ``decode_ms`` is 0, since another thread reads.
        smoothed: Averaged probabilities (K,), see :class:`ffn.serve.live.rules.SteadyLabels`.
        shown: Indices of the classes to show: one, or any number with several labels per video.
        changed: Whether `shown` differs from that of the answer before.
        time: Of the newest frame, in seconds after the first frame of the stream.
        latency_ms: From the capture of the newest frame to the answer. The capture is the time at
            which a frame of a file is due; for streams it is known up to a constant delay.
        received: Frames so far.
        dropped: Frames so far that were late.
        skipped: Answers so far that were due while the network was busy, and were not given.
    """

    prediction: Prediction
    smoothed: Tensor
    shown: tuple[int, ...]
    changed: bool
    time: float
    latency_ms: float
    received: int
    dropped: int
    skipped: int

    @property
    def labels(self) -> list[tuple[str, float]]:
        """The labels to show, with their averaged probabilities."""
        classes = self.prediction.classes
        return [(classes[k], float(self.smoothed[k])) for k in self.shown]

    def to_dict(self, k: int = 5) -> dict[str, Any]:
        """The answer as JSON values, with the k most probable labels before averaging."""
        found = self.prediction.to_dict(k)
        del found["path"], found["decode_ms"]
        names = ("time", "changed", "latency_ms", "received", "dropped", "skipped")
        shown = [{"label": label, "probability": p} for label, p in self.labels]
        return {**{name: getattr(self, name) for name in names}, **found, "shown": shown}


class LivePredictor:
    """Answers about the last seconds of a stream, one after another, while it runs.

    A thread reads the source, reduces each frame to the input of the network and keeps those of the
    last `window` seconds. Iterating runs the network and gives a :class:`LiveAnswer` each time that
    one is due. If the network is slower than the stream, a smaller number of frames is used
    (:class:`ffn.serve.live.rules.LoadControl`); if the smallest is too slow, answers are skipped.
    Memory and latency are bounded in both cases.

    Each frame runs once through a causal network (:func:`ffn.stream`). Its answer is about all
    frames of the stream, of which those before the window count less and less. In place of a
    smaller number of frames, the stride rises; answers are not skipped, but frames dropped.

    Iterating can be done once. The thread ends with it, also by ``break`` or Ctrl-C; or call
    :meth:`close`.

    Args:
        predictor: The network.
        source: A camera, an address, a video file, an iterable of (time, frame), or a source with
            options; see :func:`ffn.serve.open_source`.
        window: Seconds of the stream that an answer is about.
        step: Seconds of the stream from one answer to the next; default: half a window.
        frames: Number of input frames; default: up to five of ``predictor.counts``, by the load.
        smooth: Time constant of averaged probabilities in seconds; 0: none.
        margin: Another label is shown if it leads by this averaged probability.
        on_event: Called by the iterating thread when the state of the source changes.
        pace: For tests.

    Raises:
        ValueError: if a number is out of its range.
        TypeError: if `source` is not a source.
    """

    def __init__(
        self,
        predictor: Predictor,
        source: object,
        window: float = 2.0,
        *,
        step: float | None = None,
        frames: int | None = None,
        smooth: float = 1.0,
        margin: float = 0.1,
        on_event: Callable[[SourceEvent], None] = lambda event: None,
        pace: Pace | None = None,
    ) -> None:
        step = window / 2 if step is None else step
        numbers = {"window": window, "step": step, "smooth": smooth, "margin": margin}
        for name, value in numbers.items():
            least = SHORTEST if name in ("window", "step") else 0
            if not least <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number of {least:g} or more")
        self._source, self._on_event = open_source(source), on_event
        self._pace = pace or Pace()
        self._is_causal = predictor.is_causal
        kind = Steps if self._is_causal else Clips
        self._network = kind(predictor, self._source.name, frames, step, self._pace.now)
        self._labels = SteadyLabels(smooth, margin, multi_label=predictor.record.multi_label)
        self._transform = EvalTransform(predictor.preprocessing)
        self._window = Window(window, step)  # of the frames that were kept
        self._received = self._dropped = self._skipped = 0
        self._seen = 0  # frames that were dropped before the last run

        self._closed = False
        self._events: deque[SourceEvent] = deque()
        # Windows, and whether an answer is due with them; at last, an error, or None.
        self._queue: deque[tuple[list[Frame], bool] | BaseException | None] = deque()
        name = f"ffn live: {self._source.name}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)

    def __iter__(self) -> Iterator[LiveAnswer]:
        """Start, and give the answers until the source ends or the predictor is closed.

        Raises:
            VideoError: if the source cannot be read.
            RuntimeError: if it was started or closed before.
        """
        if self._thread.ident is not None or self._closed:
            raise RuntimeError("a live predictor iterates once; make a new one")
        self._thread.start()
        try:
            while (news := self._next()) is not None:
                if isinstance(news, BaseException):
                    raise news
                if isinstance(news, SourceEvent):
                    self._on_event(news)
                    continue
                window, is_due = news
                prediction = self._run(window)
                if is_due:
                    yield self._answer(prediction, window)
        finally:
            self.close()

    def close(self) -> None:
        """End the thread and close the source; waits for both."""
        with self._pace:
            self._closed = True
            self._pace.notify_all()
        if self._thread.is_alive():
            self._thread.join(JOIN)

    # The thread that reads.

    def _read(self) -> None:
        end = None
        try:
            with closing(self._source.frames(self._pace.now)) as arrivals:
                for arrival in arrivals:
                    if isinstance(arrival, SourceEvent):
                        self._events.append(arrival)
                        self._sleep(arrival.wait or 0.0)
                    else:
                        self._sleep(arrival[0].captured - self._pace.now())
                        self._add(*arrival)
                    if self._closed:
                        return
            if not self._window.is_due:  # the last answer is about the last frames
                self._queue.append(([*self._window.frames], True))
        except BaseException as error:  # raised where the answers are taken
            end = error
        with self._pace:
            self._queue.append(end)
            self._pace.notify_all()

    def _sleep(self, seconds: float) -> None:
        with self._pace:
            self._pace.notify_all()
            if seconds > 0:
                self._pace.wait_for(lambda: self._closed, seconds)

    def _add(self, frame: Frame, image: Callable[[], np.ndarray]) -> None:
        """Keep a frame, unless it is late or between two strides, and give the network the window.

        Windows that have waited too long for the network are dropped.
        """
        number, self._received = self._received, self._received + 1
        now, frames, stride = self._pace.now(), self._window.frames, self._network.stride
        if now - frame.captured > MAX_LAG:
            self._dropped += 1
            return
        if frames and frames[-1].part == frame.part and number - frames[-1].number < stride:
            return
        pixels = self._transform(torch.from_numpy(image().copy())[None])[0]
        pixels = pixels.clone(memory_format=torch.contiguous_format)  # a view of a larger image
        self._window.add(frame._replace(number=number, stride=stride, pixels=pixels))
        if not (self._window.is_due or self._is_causal):
            return
        oldest = self._pace.now() - (MAX_LAG if self._is_causal else 0.0)
        with self._pace:
            self._queue.append(([*frames], self._window.is_due))
            while len(self._queue) > 1 and self._queue[0][0][-1].captured <= oldest:
                _, was_due = self._queue.popleft()
                self._skipped += was_due
                self._dropped += self._is_causal
            self._pace.notify_all()

    # The thread that iterates.

    def _next(self) -> SourceEvent | tuple[list[Frame], bool] | BaseException | None:
        """The next event, or what is next in the queue; None if closed."""
        with self._pace:
            self._pace.wait_for(lambda: self._events or self._queue or self._closed)
            queue = self._events or self._queue
            return queue.popleft() if queue and not self._closed else None

    def _run(self, window: list[Frame]) -> Prediction:
        started, control = self._pace.now(), self._network.control
        first, last = window[0], window[-1]
        prediction = replace(self._network.run(window), why=control.why)
        if last.stride == self._network.stride:  # else it was kept for the count before
            now, before, self._seen = self._pace.now(), self._seen, self._dropped
            captured = last.captured - first.captured  # 0 for a burst, which has no rate
            interval = captured / self._network.runs(first, last) if captured > 0 else math.inf
            control.update((now - started) / last.stride, interval, now, late=self._seen > before)
        return prediction

    def _answer(self, prediction: Prediction, window: list[Frame]) -> LiveAnswer:
        last = window[-1]
        end = last.time + mean_interval(window)
        changed = self._labels.update(prediction.probabilities, last.time)
        return LiveAnswer(
            prediction=replace(prediction, start=window[0].time, end=end),
            smoothed=self._labels.probabilities,
            shown=self._labels.shown,
            changed=changed,
            time=last.time,
            latency_ms=1000 * (self._pace.now() - last.captured),
            received=self._received,
            dropped=self._dropped,
            skipped=self._skipped,
        )
