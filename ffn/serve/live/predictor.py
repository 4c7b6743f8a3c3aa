"""Predict the labels of a stream while it runs."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from ffn.data import EvalTransform, sample_views
from ffn.data.crops import naming_video
from ffn.serve.clips import Clip
from ffn.serve.live.answer import LiveAnswer
from ffn.serve.live.clock import Clock
from ffn.serve.live.load import LoadControl, handful
from ffn.serve.live.ring import Frame, Ring, Schedule
from ffn.serve.live.smoothing import Smoothing, SteadyLabels
from ffn.serve.live.sources import Arrival, Source, SourceEvent, open_source

if TYPE_CHECKING:
    from ffn.serve.predictor import Predictor

MAX_BYTES = 2**28  # of the frames in memory
JOIN = 30.0  # seconds that close waits for a source that does not answer

_log = logging.getLogger(__name__)


class LivePredictor:
    """Answers about the last seconds of a stream, one after another, while it runs.

    A thread reads the source, reduces each frame to the input of the network and keeps those of the
    last `window` seconds. Iterating runs the network and gives a :class:`LiveAnswer` each time that
    one is due. If the network is slower than the stream, a smaller number of frames is used
    (:class:`ffn.serve.live.load.LoadControl`); if the smallest is too slow, answers are skipped.
    Memory and latency are bounded in both cases.

    Iterating can be done once. The thread ends with it, also by ``break`` or Ctrl-C; or use the
    predictor as a context, or call :meth:`close`.

    Args:
        predictor: The network. It runs four times per count at the start, to measure its times.
        source: A camera, an address, a video file, an iterable of (time, frame), or a source with
            options; see :func:`ffn.serve.open_source`.
        window: Seconds of the stream that an answer is about.
        step: Seconds of the stream from one answer to the next; default: half a window.
        every: In place of `step`: frames from one answer to the next.
        frames: Number of input frames; default: up to five of ``predictor.counts``, by the load.
        smoothing: How labels are steadied.
        max_lag: Frames that are late by more than so many seconds are dropped.
        max_bytes: Largest size of the frames in memory.
        on_event: Called by the iterating thread when the state of the source changes.
        clock: For tests.

    Raises:
        ValueError: if a number is out of its range, or `step` and `every` are both given.
        TypeError: if `source` is not a source.
    """

    def __init__(
        self,
        predictor: Predictor,
        source: object,
        window: float = 2.0,
        *,
        step: float | None = None,
        every: int | None = None,
        frames: int | None = None,
        smoothing: Smoothing | None = None,
        max_lag: float = 1.0,
        max_bytes: int = MAX_BYTES,
        on_event: Callable[[SourceEvent], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_every(every, step)
        if every is None and step is None:
            step = window / 2
        numbers = {"window": window, "step": step, "max_lag": max_lag, "max_bytes": max_bytes}
        for name, value in numbers.items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; expected a number above 0")
        frames = None if frames == "auto" else frames
        if frames is not None:
            predictor.reader(frames)  # checks it
        self._predictor = predictor
        self._counts = handful(predictor.counts) if frames is None else [frames]
        self._why = "the largest count" if frames is None else ""
        self.source: Source = open_source(source)
        self._max_lag, self._on_event, self._clock = max_lag, on_event, clock or Clock()
        multi_label = predictor.record.multi_label
        self._labels = SteadyLabels(smoothing or Smoothing(), multi_label=multi_label)
        self._transform = EvalTransform(predictor.preprocessing)

        self._condition = threading.Condition()  # of all below
        self._ring, self._schedule = Ring(window, max_bytes), Schedule(every, step)
        self._thread: threading.Thread | None = None
        self._closed = self._ended = False
        self._error: BaseException | None = None
        self._events: list[SourceEvent] = []
        self._due = 0  # answers
        self._window: list[Frame] | None = None  # of the answer that is due, if it was waited for
        self._is_idle = True
        self._answered = -1  # number of the newest frame of the last answer
        self._received = self._dropped = self._late = self._skipped = self._connections = 0

    def __enter__(self) -> LivePredictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[LiveAnswer]:
        """Start, and give the answers until the source ends or the predictor is closed.

        Raises:
            VideoError: if the source cannot be read.
            RuntimeError: if it was started or closed before.
        """
        if self._thread is not None or self._closed:
            raise RuntimeError("a live predictor iterates once; make a new one")
        control = LoadControl(self._measure(), self._why)
        name = f"ffn live: {self.source.name}"
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()
        try:
            while (window := self._next_window()) is not None:
                yield self._answer(window, control)
        finally:
            self.close()

    def close(self) -> None:
        """End the thread and close the source; waits for both."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN)
            if self._thread.is_alive():
                _log.warning(
                    "%s gives neither a frame nor an end for %g s; its thread ends with its next "
                    "frame, or with the process",
                    self.source.name,
                    JOIN,
                )

    # The thread that reads.

    def _read(self) -> None:
        try:
            with closing(self.source.frames(_Pace(self))) as arrivals:
                for arrival in arrivals:
                    if self._closed:
                        return
                    self._take(arrival)
        except BaseException as error:  # raised where the answers are taken
            self._error = error
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()

    def _take(self, arrival: Arrival) -> None:
        """Keep a frame, and tell if an answer is due."""
        started = self._clock.now()
        number, self._received = self._received, self._received + 1
        if started - arrival.captured > self._max_lag:
            with self._condition:
                self._dropped, self._late = self._dropped + 1, self._late + 1
            return
        image = torch.from_numpy(arrival.image().copy())
        with naming_video(self.source.name):
            pixels = self._transform(image[None])[0]
        pixels = pixels.clone(memory_format=torch.contiguous_format)  # a view of a larger image
        spent = 1000 * (self._clock.now() - started)
        frame = Frame(number, arrival.time, arrival.captured, pixels, spent)
        with self._condition:
            if arrival.is_new_part:
                self._ring.clear()
                self._schedule.reset()
                if self._window is None:  # it would be about the few frames since
                    self._skipped, self._due = self._skipped + self._due, 0
            self._dropped += self._ring.add(frame)
            if self._schedule.is_due(frame, self._ring.full):
                self._due += 1
                alone = self._is_idle and self._due == 1
                self._window = self._ring.frames() if alone else None
                self._condition.notify_all()

    # The thread that iterates.

    def _next_window(self) -> list[Frame] | None:
        """The frames of the next answer; None at the end."""
        while True:
            with self._condition:
                self._is_idle = not self._due
                self._clock.wait(self._condition, self._has_news)
                events, self._events = self._events, []
                window = None if self._closed else self._take_window()
                is_over = self._closed or (self._ended and window is None)
            for event in events:
                if self._on_event is not None:
                    self._on_event(event)
            if window is not None:
                return window
            if is_over:
                if self._error is not None and not self._closed:
                    raise self._error
                return None

    def _has_news(self) -> bool:
        return bool(self._due or self._events or self._ended or self._closed)

    def _take_window(self) -> list[Frame] | None:
        """The frames of an answer that is due; or the last ones of a source that has ended.

        An answer for which the network waited ends with the frame with which it fell due. One that
        fell due while the network was busy ends with the newest frame.
        """
        newest = self._ring.newest
        is_rest = self._ended and self._error is None and newest is not None
        is_rest = is_rest and newest.number > self._answered
        if not self._due and not is_rest:
            return None
        window = self._window or self._ring.frames()
        self._skipped += max(self._due - 1, 0)
        self._due, self._window, self._is_idle = 0, None, False
        self._answered = window[-1].number
        return window

    def _answer(self, window: Sequence[Frame], control: LoadControl) -> LiveAnswer:
        started = self._clock.now()
        prediction = self._predictor.predict([self._clip(window, control.count, control.why)])[0]
        changed = self._labels.update(prediction.probabilities, window[-1].time)
        finished = self._clock.now()
        interval = self._schedule.interval(window)
        with self._condition:
            late, self._late = self._late, 0
            counts = {
                "received": self._received,
                "dropped": self._dropped,
                "skipped": self._skipped,
                "connections": self._connections,
                "kept_bytes": self._ring.bytes,
            }
        control.update(finished - started, interval, finished, late=late > 0)
        return LiveAnswer(
            prediction=prediction,
            smoothed=self._labels.probabilities,
            shown=self._labels.shown,
            changed=changed,
            time=window[-1].time,
            latency_ms=1000 * (finished - window[-1].captured),
            taken_ms=1000 * (finished - started),
            interval_ms=1000 * interval,
            **counts,
        )

    def _clip(self, window: Sequence[Frame], count: int, why: str) -> Clip:
        """The clip of a window, sampled as a window of a file."""
        rule = self._predictor.preprocessing.sampling
        chosen = [window[i] for i in sample_views(len(window), (count,), rule=rule)[count]]
        start, last = window[0].time, window[-1].time
        end = last + (last - start) / max(len(window) - 1, 1)  # shown as long as the mean
        return Clip(
            name=self.source.name,
            pixels=torch.stack([frame.pixels for frame in chosen], dim=1),  # (C, T, H, W)
            why=why,
            indices=tuple(frame.number for frame in chosen),
            decode_ms=sum(frame.spent_ms for frame in chosen),
            seconds=end - start,
            start=start,
            end=end,
        )

    def _measure(self) -> dict[int, float]:
        """Seconds of an answer by count; the first run of each builds its network."""
        size, seconds = self._predictor.preprocessing.crop, {}
        for count in self._counts:
            pixels = torch.zeros(3, count, size, size, dtype=torch.uint8)
            clip = Clip("measurement", pixels, "", tuple(range(count)), 0.0)
            runs = []
            for _ in range(4):
                started = self._clock.now()
                self._predictor.predict([clip])
                runs.append(self._clock.now() - started)
            seconds[count] = min(runs[1:])
        return seconds


class _Pace:
    """What the source needs of a live predictor, see :class:`ffn.serve.live.sources.Pace`."""

    def __init__(self, live: LivePredictor) -> None:
        self._live = live

    def now(self) -> float:
        return self._live._clock.now()

    def sleep(self, seconds: float) -> bool:
        live = self._live
        if seconds > 0 and not live._closed:
            with live._condition:
                live._clock.wait(live._condition, lambda: live._closed, seconds)
        return not live._closed

    def report(self, event: SourceEvent) -> None:
        live = self._live
        with live._condition:
            live._connections += event.state == "connected"
            live._events.append(event)
            live._condition.notify_all()


def _check_every(every: int | None, step: float | None) -> None:
    if every is None:
        return
    if step is not None:
        raise ValueError(f"got step={step!r} and every={every!r}; give one of them")
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ValueError(f"every is {every!r}; expected a number of frames of 1 or more")
