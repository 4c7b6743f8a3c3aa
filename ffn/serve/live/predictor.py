"""Predict the labels of a stream while it runs."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ffn.core import FrameFlexible
from ffn.data import EvalTransform, Normalize
from ffn.export import stream
from ffn.serve.live.rules import EARLY, Frame, LoadControl, SteadyLabels, Window, mean_interval
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
        prediction: Of the window; ``indices``, ``start`` and ``end`` are of the stream, and
            ``decode_ms`` is 0.
        smoothed: Averaged probabilities (K,), see docs/live.md, "Labels".
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


class _Clips:
    """Runs a network over a clip of each window for which an answer is due.

    Attributes:
        control: Chooses the number of input frames.
        stride: Runs that the next one stands for.
        seconds: Of the stream, from one run to the next.
    """

    stride = 1

    def __init__(self, predictor: Predictor, name: str, frames: int | None, seconds: float) -> None:
        self._predictor, self._name, self.seconds = predictor, name, seconds
        predictor.reader(frames)  # checks it
        latencies = predictor.latencies() if frames is None else {frames: 1.0}
        self.control = LoadControl(latencies)
        predictor.warm_up(latencies)

    def run(self, window: Sequence[Frame]) -> Prediction:
        """The prediction of a clip, sampled as from a window of a file."""
        clip = self._predictor.reader(self.control.count).plan(self._name, range(len(window)), None)
        chosen = [window[place] for place in clip.indices]
        pixels = torch.stack([frame.pixels for frame in chosen], dim=1)  # (C, T, H, W)
        indices = tuple(frame.number for frame in chosen)
        return self._predictor.predict([replace(clip, pixels=pixels, indices=indices)])[0]


class _Steps:
    """Runs a causal network, see :func:`ffn.stream`, whose largest count fills a window."""

    def __init__(self, predictor: Predictor, name: str, frames: int | None, seconds: float) -> None:
        self._predictor, self._name = predictor, name
        self._newest = Frame(0.0, 0.0, part=-1)  # so that the first one resets the stream
        self._normalize = Normalize(predictor.preprocessing)
        side, is_flexible = predictor.preprocessing.crop, isinstance(predictor.model, FrameFlexible)
        self._largest = predictor.default_frames if is_flexible or not frames else frames
        options = {"window": self._largest, "precision": predictor.stream_precision}
        self._stream, self.seconds = stream(predictor.model, **options), seconds / self._largest
        counts = [self._largest // stride for stride in reversed(self._stream.strides)]
        if frames not in (None, *counts):
            raise ValueError(f"frames is {frames}; a stream runs the networks of {counts} frames")
        self.control = LoadControl({n: n for n in (counts if frames is None else [frames])})
        for stride in self._stream.strides:  # the first step builds its network
            self._stream.stride = stride
            self._stream.step(torch.zeros(3, side, side, device=predictor.device))

    @property
    def stride(self) -> int:
        """Frames of the largest count for one of the sub-network."""
        return self._largest // self.control.count

    def run(self, window: Sequence[Frame]) -> Prediction:
        """Read the last frame, unless it was read; returns the prediction of all frames so far."""
        started, frame = time.perf_counter(), window[-1]
        if frame is not self._newest:
            if frame.part != self._newest.part:
                self._stream.reset()
            self._newest, self._stream.stride = frame, frame.stride
            clip = self._normalize(frame.pixels[None, :, None].to(self._predictor.device))
            self._logits = self._stream.step(clip[0, :, 0]).cpu()
        count, record = self._largest // frame.stride, self._predictor.record
        return Prediction(
            path=self._name,
            probabilities=record.label_kind.probabilities(self._logits),
            classes=self._predictor.classes,
            frames=count,
            active=count,
            network=f"stream, {self._predictor.stream_precision}",
            decode_ms=0.0,
            model_ms=1000 * (time.perf_counter() - started),
            multi_label=record.multi_label,
            indices=tuple(frame.number for frame in window),
        )


class LivePredictor:
    """Answers about the last seconds of a stream, one after another, while it runs.

    Iterating gives a :class:`LiveAnswer` each time that one is due; it can be done once. A thread
    reads the source; it ends with the iteration, also by ``break`` or Ctrl-C, or by :meth:`close`.
    Memory and latency are bounded, also if the network is slower than the stream: docs/live.md has
    the rules, also those of causal networks.

    Args:
        predictor: The network.
        source: What :func:`ffn.serve.open_source` takes or, with options, returns.
        window: Seconds that an answer is about; for a causal network, of a clip in its training.
        step: Seconds of the stream from one answer to the next; default: half a window.
        frames: Number of input frames; default: those of ``predictor.latencies``, by the load.
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
        least = {"window": SHORTEST, "step": SHORTEST, "smooth": 0.0, "margin": 0.0}
        for (name, low), value in zip(least.items(), (window, step, smooth, margin), strict=True):
            if not low <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number of {low:g} or more")
        self._source, self._on_event = open_source(source), on_event
        self._pace = pace or Pace()
        self._is_causal = predictor.is_causal
        kind, seconds = (_Steps, window) if self._is_causal else (_Clips, step)
        self._network = kind(predictor, self._source.name, frames, seconds)
        self._labels = SteadyLabels(smooth, margin, multi_label=predictor.record.multi_label)
        self._transform = EvalTransform(predictor.preprocessing)
        self._window, self._due = Window(window, step), 0.0  # of and for frames that are kept
        self._received = self._dropped = self._skipped = 0
        self._seen = 0  # frames that were dropped before the last run
        self._closed, self._events = False, deque[SourceEvent]()
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
            while True:
                with self._pace:
                    self._pace.wait_for(lambda: self._events or self._queue or self._closed)
                    news = None if self._closed else (self._events or self._queue).popleft()
                if isinstance(news, SourceEvent):
                    self._on_event(news)
                elif isinstance(news, tuple):
                    prediction = self._run(news[0])
                    if news[1]:
                        yield self._answer(prediction, news[0])
                elif news is None:
                    return
                else:
                    raise news
        finally:
            self.close()

    def close(self) -> None:
        """End the thread and close the source; waits for both."""
        with self._pace:
            self._closed = True
            self._pace.notify_all()
        if self._thread.is_alive():
            self._thread.join(JOIN)

    def _read(self) -> None:
        """What the thread runs."""
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
        """Keep a frame, unless it is late or not yet due, and give the network the window.

        Windows that have waited too long for the network are dropped.
        """
        number, self._received = self._received, self._received + 1
        frames, stride = self._window.frames, self._network.stride
        if self._pace.now() - frame.captured > MAX_LAG:
            self._dropped += 1
            return
        interval = stride * self._network.seconds if self._is_causal else 0.0
        due = self._due + interval if frames and frames[-1].part == frame.part else frame.time
        if frame.time < due - EARLY * interval:
            return
        self._due = due if frame.time < due + interval else frame.time
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

    def _run(self, window: list[Frame]) -> Prediction:
        """Run the network, and choose the number of frames of the next run by its time."""
        started, control = self._pace.now(), self._network.control
        first, last = window[0], window[-1]
        prediction = replace(self._network.run(window), why=control.why)
        if last.stride == self._network.stride:  # else it was kept for the count before
            now, before, self._seen = self._pace.now(), self._seen, self._dropped
            runs = (last.time - first.time) / self._network.seconds
            captured = last.captured - first.captured  # 0 for a burst, which has no rate
            interval, late = captured / runs if captured > 0 else math.inf, self._seen > before
            control.update((now - started) / last.stride, interval, now, late=late)
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
