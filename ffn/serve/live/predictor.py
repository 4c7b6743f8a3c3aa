"""Predict the labels of a stream while it runs."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ffn.data import EvalTransform
from ffn.data.decoding import PATTERN
from ffn.serve.choose_frames import Always
from ffn.serve.clips import Clip, ClipReader
from ffn.serve.live.rules import Frame, LoadControl, SteadyLabels, Window, handful
from ffn.serve.live.sources import Arrival, Pace, SourceEvent, open_source
from ffn.serve.live.steps import Steps
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
        for name, value in {"window": window, "step": step}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        for name, value in {"smooth": smooth, "margin": margin}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number of 0 or more")
        self._predictor = predictor
        self._steps = Steps(predictor) if predictor.is_causal else None
        counts = predictor.counts if self._steps is None else self._steps.counts
        if self._steps is None and frames is not None:
            predictor.reader(frames)  # checks it
        elif frames not in (None, *counts):
            raise ValueError(f"frames is {frames}; a stream runs the networks of {counts} frames")
        self._counts = handful(counts) if frames is None else [frames]
        self._stride = 1 if self._steps is None else self._steps.stride(self._counts[-1])
        self._why = "the largest count" if frames is None else ""
        self._source, self._on_event = open_source(source), on_event
        self._pace = pace or Pace()
        self._changed = self._pace.changed
        self._labels = SteadyLabels(smooth, margin, multi_label=predictor.record.multi_label)
        self._transform = EvalTransform(predictor.preprocessing)
        self._newest, self._step, self._seconds = Window(window, step), step, window
        self._pending: deque[Frame] = deque()  # for a causal network
        # The newest frame that was kept, the newest that was read, the first after a break.
        self._taken: Frame | None = None
        self._last_read: Frame | None = None
        self._began: Frame | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._due: list[Frame] | None = None  # window of the answer that is due
        self._answered = -1  # number of the newest frame of the last answer
        self._received = self._dropped = self._skipped = 0
        self._late = False  # whether frames were dropped since the last answer

    def __iter__(self) -> Iterator[LiveAnswer]:
        """Start, and give the answers until the source ends or the predictor is closed.

        Raises:
            VideoError: if the source cannot be read.
            RuntimeError: if it was started or closed before.
        """
        if self._thread is not None or self._pace.closed:
            raise RuntimeError("a live predictor iterates once; make a new one")
        control = LoadControl(self._measure(), self._why)
        name = f"ffn live: {self._source.name}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()
        try:
            while (news := self._next()) is not None:
                if (answer := self._answer(*news, control)) is not None:
                    yield answer
        finally:
            self.close()

    def close(self) -> None:
        """End the thread and close the source; waits for both."""
        with self._changed:
            self._pace.closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(JOIN)

    # The thread that reads.

    def _read(self) -> None:
        try:
            with closing(self._source.frames(self._pace)) as arrivals:
                for arrival in arrivals:
                    if self._pace.closed:
                        return
                    self._take(arrival)
        except BaseException as error:  # raised where the answers are taken
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self, arrival: Arrival) -> None:
        """Keep a frame, and tell if an answer is due."""
        number, self._received = self._received, self._received + 1
        if self._pace.now() - arrival.captured > MAX_LAG:
            with self._changed:
                self._dropped, self._late = self._dropped + 1, True
            return
        is_new_part = arrival.is_new_part or self._taken is None
        if not is_new_part and number - self._taken.number < self._stride:
            return
        image = torch.from_numpy(arrival.image().copy())
        pixels = self._transform(image[None])[0]
        pixels = pixels.clone(memory_format=torch.contiguous_format)  # a view of a larger image
        of = (number, arrival.time, arrival.captured, pixels, self._stride, is_new_part)
        self._taken = frame = Frame(*of)
        with self._changed:
            if arrival.is_new_part:
                self._newest.clear()
            if self._newest.add(frame):
                self._skipped += self._due is not None
                self._due = list(self._newest.frames)
                self._changed.notify_all()
            if self._steps is not None:
                self._pending.append(frame)
                oldest = self._pace.now() - MAX_LAG
                while len(self._pending) > 1 and self._pending[0].captured < oldest:
                    self._pending.popleft()
                    self._dropped, self._late = self._dropped + 1, True
                self._changed.notify_all()

    # The thread that iterates.

    def _next(self) -> tuple[list[Frame], list[Frame] | None] | None:
        """Frames to read, and those of the answer that is due, if one is; None at the end."""
        while True:
            with self._changed:
                self._pace.wait(self._has_news)
                events, self._pace.events = self._pace.events, []
                window = None if self._pace.closed else self._take_window()
                frames = [] if self._pace.closed else self._take_pending(window)
                is_over = self._pace.closed or (self._ended and not frames and window is None)
            for event in events:
                self._on_event(event)
            if frames or window is not None:
                return frames, window
            if is_over:
                if self._error is not None and not self._pace.closed:
                    raise self._error
                return None

    def _has_news(self) -> bool:
        due = self._due or self._pending
        return bool(due or self._pace.events or self._ended or self._pace.closed)

    def _take_window(self) -> list[Frame] | None:
        """The frames of the last answer that fell due; or the last ones of a source's end."""
        window, self._due = self._due, None
        if window is None and self._ended and self._error is None:
            window = list(self._newest.frames)
        if not window or window[-1].number == self._answered:
            return None
        self._answered = window[-1].number
        return window

    def _take_pending(self, window: Sequence[Frame] | None) -> list[Frame]:
        """Frames for a causal network, up to that of the answer that is due."""
        last = window[-1].number if window else math.inf
        frames: list[Frame] = []
        while self._pending and self._pending[0].number <= last:
            frames.append(self._pending.popleft())
        return frames

    def _answer(
        self, frames: Sequence[Frame], window: Sequence[Frame] | None, control: LoadControl
    ) -> LiveAnswer | None:
        started, why = self._pace.now(), control.why
        if self._steps is None:
            prediction = self._predictor.predict([self._clip(window, control.count, why)])[0]
        else:
            if frames:
                self._read_frames(frames, control)
            if not window:
                return None
            seconds = self._pace.now() - started
            prediction = self._steps.answer(window, self._source.name, why, seconds)
        changed = self._labels.update(prediction.probabilities, window[-1].time)
        finished = self._pace.now()
        if self._steps is None:
            self._control(control, finished - started, self._interval(window))
        with self._changed:
            counts = (self._received, self._dropped, self._skipped)
        return LiveAnswer(
            prediction,
            self._labels.probabilities,
            self._labels.shown,
            changed,
            window[-1].time,
            1000 * (finished - window[-1].captured),
            *counts,
        )

    def _read_frames(self, frames: Sequence[Frame], control: LoadControl) -> None:
        """Run a causal network over the next frames."""
        started, last = self._pace.now(), frames[-1]
        before = self._last_read or frames[0]
        self._began = next((f for f in reversed(frames) if f.is_new_part), self._began)
        passed, count = last.time - self._began.time, last.number - self._began.number
        self._steps.run(frames, self._seconds * count / passed if passed else 1)
        self._last_read = last
        if count:
            seconds = (self._pace.now() - started) / max(1, last.number - before.number)
            self._control(control, seconds, (last.captured - self._began.captured) / count)
            self._stride = self._steps.stride(control.count)

    def _control(self, control: LoadControl, seconds: float, interval: float) -> None:
        with self._changed:
            late, self._late = self._late, False
        control.update(seconds, interval, self._pace.now(), late=late)

    def _interval(self, window: Sequence[Frame]) -> float:
        """Seconds of the clock until the next answer is due, at the rate of some frames."""
        captured = window[-1].captured - window[0].captured
        if captured <= 0:  # a single frame has no rate
            return math.inf
        return self._step * captured / (window[-1].time - window[0].time)

    def _clip(self, window: Sequence[Frame], count: int, why: str) -> Clip:
        """The clip of a window, sampled as a window of a file."""
        start, last = window[0].time, window[-1].time
        end = last + (last - start) / max(len(window) - 1, 1)  # shown as long as the mean
        reader = ClipReader(self._predictor.preprocessing, PATTERN, Always(count, why))
        clip = reader.plan(self._source.name, range(len(window)), end - start)
        chosen = [window[place] for place in clip.indices]
        pixels = torch.stack([frame.pixels for frame in chosen], dim=1)  # (C, T, H, W)
        numbers = tuple(frame.number for frame in chosen)
        return replace(clip, pixels=pixels, indices=numbers, start=start, end=end)

    def _measure(self) -> dict[int, float]:
        """Seconds of an answer, or a frame, by count; the first run of each builds its network."""
        if self._steps is not None:
            found = self._steps.measure(self._pace.now)
            return {count: found[count] for count in self._counts}
        size, seconds = self._predictor.preprocessing.crop, {}
        for count in self._counts:
            pixels = torch.zeros(3, count, size, size, dtype=torch.uint8)
            clip = Clip("measurement", pixels, "", tuple(range(count)), 0.0)
            runs = []
            for _ in range(4):
                started = self._pace.now()
                self._predictor.predict([clip])
                runs.append(self._pace.now() - started)
            seconds[count] = min(runs[1:])
        return seconds
