"""Streams that are interrupted: attempts to connect, times, lag, and a server on this machine."""

from __future__ import annotations

import doctest
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from live_network import Network
from simulated_clock import SimulatedClock

from ffn import files
from ffn.data import VideoError
from ffn.serve import LivePredictor, SourceEvent, open_source
from ffn.serve.live.sources import Grab, Pace, Source, _connect, _stay_connected

SENDER = Path(__file__).parents[2] / "send_stream.py"


def image(value: int = 0) -> np.ndarray:
    return np.full((2, 2, 3), value, np.uint8)


class Camera:
    """Connections one after another: frames at 5 per second, or an error.

    Args:
        parts: number of frames of each connection; 0: it fails; the last one ends the test.
        delay: seconds that a frame is late, by number.
    """

    def __init__(
        self, clock: SimulatedClock, *parts: int, delay: Callable[[int], float] = lambda n: 0.0
    ) -> None:
        self._clock, self._parts, self._delay = clock, list(parts), delay
        self.tried: list[float] = []

    def __call__(self) -> Iterator[Grab]:
        self.tried.append(self._clock.now())
        frames = self._parts.pop(0) if self._parts else 0
        if not frames:
            raise VideoError("camera", "refused")
        began = self._clock.now()
        for number in range(frames):
            due = began + 0.2 * (number + 1) + self._delay(number)
            self._clock.spend(max(0.0, due - self._clock.now()))
            yield 5000.0 + 0.2 * number, image


def live(
    clock: SimulatedClock, connect: Callable, *, attempts: int | None = None, **options
) -> tuple[LivePredictor, list[SourceEvent]]:
    events: list[SourceEvent] = []
    source = Source("camera", partial(_stay_connected, "camera", connect, attempts))
    options = {"step": 0.2, "frames": 4, "on_event": events.append, "pace": clock} | options
    return LivePredictor(Network(clock), source, 1.0, **options), events


def test_attempts_wait_longer_and_longer() -> None:
    clock = SimulatedClock()
    camera = Camera(clock, 10, *[0] * 7, 10)
    predictor, events = live(clock, camera)
    answers = []
    for answer in predictor:
        answers.append(answer)
        if answer.received == 20:
            break

    waits = [b - a for a, b in pairwise(camera.tried)]
    assert waits == pytest.approx([2 + 1, 2, 4, 8, 16, 30, 30, 30])
    assert [(e.state, e.attempt, e.wait) for e in events[:10]] == [
        ("connected", 0, None),
        ("interrupted", 0, 1),
        *[("failed", n, min(30, 2**n)) for n in range(1, 8)],
        ("connected", 8, None),
    ]
    assert events[1].message == "the stream has ended"
    assert events[2].message == "refused"
    # No answer is about frames of both sides of the interruption; the times go on.
    assert [a.prediction.indices[0] for a in answers] == [*range(6), *range(10, 16)]
    assert answers[6].time - answers[5].time == pytest.approx(sum(waits[1:]) + 1 + 1.0)


def test_frames_that_are_late_beyond_the_limit_are_dropped() -> None:
    """A network that holds back frames 20 to 39 until 4 s later, and gives them at once."""
    clock = SimulatedClock()
    camera = Camera(clock, 80, delay=lambda n: max(0.0, 0.2 * (40 - n)) if 20 <= n < 40 else 0.0)
    predictor, _ = live(clock, camera, attempts=0)
    answers = list(predictor)
    # At 8.2 s, frames 20 to 34 are late by 4 s to 1.2 s.
    assert answers[-1].dropped == 15
    assert max(a.latency_ms for a in answers) <= 1000 + 1e-3
    assert [a.prediction.indices[-1] for a in answers][-40:] == list(range(40, 80))


def test_a_camera_whose_clock_is_slow_is_not_late() -> None:
    """By 0.09 %, which makes 1.35 s in 25 minutes."""
    clock = SimulatedClock()
    camera = Camera(clock, 5 * 1500, delay=lambda n: 9e-4 * 0.2 * n)
    predictor, _ = live(clock, camera, attempts=0, step=100.0)
    answers = list(predictor)
    assert answers[-1].dropped == 0
    assert max(a.latency_ms for a in answers) < 10


def test_a_jump_of_the_times_begins_a_new_part() -> None:
    clock = SimulatedClock()

    def connect() -> Iterator[Grab]:
        for number in range(40):
            clock.spend(0.2)
            yield 0.2 * number + {0: 0, 1: -100, 2: 50, 3: 50}[number // 10], image

    predictor, _ = live(clock, connect, attempts=0)
    answers = list(predictor)
    assert [a.prediction.indices[0] for a in answers] == [
        *range(6), *range(10, 16), *range(20, 36),
    ]  # fmt: skip
    assert [b.time - a.time for a, b in pairwise(answers)][:5] == pytest.approx([0.2] * 5)


def test_times_that_are_missing() -> None:
    """Such a frame is as much later than the frame before as it arrived later."""
    for times in ([None if n == 9 else n / 4 for n in range(20)], [None] * 20):
        clock = SimulatedClock()

        def connect(clock=clock, times=times) -> Iterator[Grab]:
            for sent in times:
                clock.spend(0.25)
                yield sent, image

        predictor, _ = live(clock, connect, attempts=0, step=1.0)
        answers = list(predictor)
        assert [a.time for a in answers] == pytest.approx([0.75, 1.75, 2.75, 3.75, 4.75])
        assert [a.latency_ms for a in answers] == pytest.approx([0] * 5, abs=1e-6)


def test_formats_without_times(tmp_path) -> None:
    """As that of web cameras over http: FFmpeg would count 25 frames per second."""
    path = str(tmp_path / "a.mjpeg")
    with av.open(path, "w") as output:
        stream = output.add_stream("mjpeg", rate=10, width=16, height=16, pix_fmt="yuvj420p")
        for _ in range(3):
            output.mux(stream.encode(av.VideoFrame(16, 16, "yuvj420p")))
    assert [sent for sent, _ in _connect(path, None, 5.0, {})] == [None] * 3


def test_names_of_cameras_and_addresses() -> None:
    for given in (0, "0", "/dev/video0", Path("/dev/video0")):
        assert open_source(given).name == "/dev/video0"
    assert doctest.testmod(files) == (0, 2)
    assert files.without_password("rtsp://camera/1?a=b") == "rtsp://camera/1?a=b"
    for password in ("secret", "p@ss", "a/b", "a/b@c", "a?b", "a#b", "1/2@3"):
        source = open_source(f"rtsp://me:{password}@camera:554/1")
        assert source.name == "rtsp://camera:554/1"
    with pytest.raises(VideoError, match=r"/dev/video98: cannot be opened"):
        list(LivePredictor(Network(SimulatedClock()), 98, pace=SimulatedClock()))


class Quick(Pace):
    """A clock of the machine on which a simulated network takes no time."""

    def spend(self, seconds: float) -> None:
        """Nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rtsp", "udp"])
def test_a_stream_in_real_time(kind) -> None:
    """Six seconds at 25 frames per second; over RTSP, the sender connects to the reader."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address, before = f"{kind}://127.0.0.1:{port}", open_files()
    listens = {"rtsp_flags": "listen", "listen_timeout": "60"}
    if kind == "rtsp":
        source = open_source(f"{address}/live", attempts=0, timeout=60.0, options=listens)
    else:
        source = open_source(address, attempts=0, timeout=8.0)
    sender = subprocess.Popen([sys.executable, SENDER, source.name])
    clock, answers = Quick(), []
    live = LivePredictor(Network(clock), source, 1.0, step=0.2, frames=4, pace=clock)
    # Over UDP, a stream ends by giving no more data.
    ends = suppress(VideoError) if kind == "rtsp" else pytest.raises(VideoError, match="no data")
    with ends:
        answers.extend(live)
    assert sender.wait(60) == 0
    assert 100 <= answers[-1].received <= 150  # the first may come before the reader is ready
    assert answers[-1].time == pytest.approx((answers[-1].received - 1) / 25, abs=0.1)
    assert np.median([a.latency_ms for a in answers]) < 200
    assert not [t for t in threading.enumerate() if t.name.startswith("ffn live")]
    assert open_files() <= before


def open_files() -> int:
    """Open files and sockets of this process; 0 where /proc is missing."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
