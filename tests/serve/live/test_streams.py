"""Streams that are interrupted: attempts to connect, times, lag, and a server on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from live_network import Network
from simulated_clock import SimulatedClock

from ffn.data import VideoError
from ffn.serve import LivePredictor, SourceEvent, open_source
from ffn.serve.live.sources import Clock, Grab, StreamSource, camera_path, without_password

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
            yield Grab(5000.0 + 0.2 * number, image)


def live(
    clock: SimulatedClock, connect: Callable, *, attempts: int | None = None, **options
) -> tuple[LivePredictor, list[SourceEvent]]:
    events: list[SourceEvent] = []
    source = StreamSource("camera", connect, attempts=attempts)
    options = {"step": 0.2, "frames": 4, "on_event": events.append, "clock": clock} | options
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


def test_the_first_connection_must_work() -> None:
    clock = SimulatedClock()
    camera = Camera(clock)
    predictor, events = live(clock, camera)
    with pytest.raises(VideoError, match="camera: refused"):
        list(predictor)
    assert (len(camera.tried), events) == (1, [])


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
    """By 0.05 %, which makes 1.8 s in an hour."""
    clock = SimulatedClock()
    camera = Camera(clock, 5 * 3600, delay=lambda n: 5e-4 * 0.2 * n)
    predictor, _ = live(clock, camera, attempts=0, step=100.0)
    answers = list(predictor)
    assert answers[-1].dropped == 0
    assert max(a.latency_ms for a in answers) < 10


def test_a_jump_of_the_times_begins_a_new_part() -> None:
    clock = SimulatedClock()

    def connect() -> Iterator[Grab]:
        for number in range(40):
            clock.spend(0.2)
            yield Grab(0.2 * number + {0: 0, 1: -100, 2: 50, 3: 50}[number // 10], image)

    predictor, _ = live(clock, connect, attempts=0)
    answers = list(predictor)
    assert [a.prediction.indices[0] for a in answers] == [
        *range(6), *range(10, 16), *range(20, 36),
    ]  # fmt: skip
    assert [b.time - a.time for a, b in pairwise(answers)][:5] == pytest.approx([0.2] * 5)


def test_times_that_are_missing_or_repeated() -> None:
    """Such a frame is as much later than the frame before as it arrived later."""
    for times in (
        [None if n == 9 else n / 4 for n in range(20)],
        [2.0 if n == 9 else n / 4 for n in range(20)],
        [None] * 20,
        [7.0] * 20,
    ):
        clock = SimulatedClock()

        def connect(clock=clock, times=times) -> Iterator[Grab]:
            for sent in times:
                clock.spend(0.25)
                yield Grab(sent, image)

        predictor, _ = live(clock, connect, attempts=0, step=1.0)
        answers = list(predictor)
        assert [a.time for a in answers] == pytest.approx([0.75, 1.75, 2.75, 3.75, 4.75])
        assert [a.latency_ms for a in answers] == pytest.approx([0] * 5, abs=1e-6)


def test_an_answer_that_waited_is_not_about_the_first_frames_of_a_new_part() -> None:
    clock = SimulatedClock()

    def connect() -> Iterator[Grab]:
        for number in range(60):
            clock.spend(0.2)
            yield Grab(0.2 * number + 100 * (number >= 15), image)

    # The answer of frame 4 takes until frame 16: the last full window before ends at frame 14.
    predictor, _ = live(clock, connect, attempts=0)
    predictor._predictor = Network(clock, lambda count, now: 2.3 if 0.9 < now < 2 else 0.0)
    first, second, *_ = predictor
    assert first.prediction.indices[-1] == 4
    assert second.time - second.prediction.start == pytest.approx(0.8)  # full: five frames
    assert second.prediction.indices[0] == 10
    assert second.skipped >= 9


def test_names_of_cameras_and_addresses() -> None:
    assert [camera_path(x) for x in (0, "2", "/dev/video1", Path("/dev/video3"))] == [
        f"/dev/video{n}" for n in (0, 2, 1, 3)
    ]
    assert [camera_path(x) for x in ("a.mp4", "rtsp://camera/0", True, 1.0, "/dev/video1.mp4")] == [
        None
    ] * 5
    assert without_password("rtsp://camera/1?a=b") == "rtsp://camera/1?a=b"
    assert without_password("rtsp://me:secret@[::1]:554/1") == "rtsp://[::1]:554/1"
    for password in ("p@ss", "a/b", "a/b@c", "a?b", "a#b", "1/2@3"):
        assert without_password(f"rtsp://me:{password}@camera:554/1") == "rtsp://camera:554/1"
    with pytest.raises(VideoError, match=r"/dev/video98: no such camera"):
        list(LivePredictor(Network(SimulatedClock()), 98, clock=SimulatedClock()))


# A server on this machine.


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    """Sixty frames at 20 per second, a key frame every 5, as MPEG transport stream."""
    path = tmp_path_factory.mktemp("content") / "video.ts"
    random = np.random.default_rng(0)
    with av.open(str(path), "w", format="mpegts") as output:
        stream = output.add_stream("mpeg2video", rate=25, options={"g": "5"})
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        for _ in range(60):
            frame = random.integers(0, 256, (64, 64, 3), np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        output.mux(stream.encode())
    return path.read_bytes()


class Server:
    """Serves a video; each connection has its own share of it, or fails.

    Args:
        content: the bytes.
        shares: of the content that each connection gets; 0: an error; None: nothing, and no end.
    """

    def __init__(self, content: bytes, *shares: float | None) -> None:
        self.content, self.shares = content, list(shares)
        self.agents: list[str] = []
        self.release = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}/video.ts"

    def __enter__(self) -> Server:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    def __init__(self, owner: Server, *arguments: object) -> None:
        self.owner = owner
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.owner.agents.append(self.headers["User-Agent"])
        share = self.owner.shares.pop(0) if self.owner.shares else 0
        if share == 0:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Type", "video/mp2t")
        self.end_headers()
        self.wfile.write(self.owner.content[: int(len(self.owner.content) * (share or 0.4))])
        if share is None:
            self.wfile.flush()
            self.owner.release.wait(20)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Quick(Clock):
    """A clock on which long waits take a hundredth of their time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def spend(self, seconds: float) -> None:
        """The network takes no time."""

    def wait(self, condition, ready, seconds=None) -> bool:
        if seconds is not None:
            self.waits.append(seconds)
            seconds /= 100
        return super().wait(condition, ready, seconds)


@pytest.mark.slow
def test_a_server_that_breaks_off(content) -> None:
    """Half of the content; an error; all of it; errors. Nothing is left open."""
    clock, events = Quick(), []
    with Server(content, 0.5, 0, 1) as server:
        before = open_files()
        options = {"options": {"user_agent": "a test"}, "attempts": 3}
        source = open_source(server.address, **options)
        predictor = LivePredictor(
            Network(clock), source, 0.4, step=0.2, frames=4, on_event=events.append, clock=clock
        )
        answers = []
        with pytest.raises(VideoError, match=r"cannot be opened: .*; gave up after 3 attempts"):
            answers.extend(predictor)
        received = predictor._received
        assert set(server.agents) == {"a test"}
        assert len(server.agents) == 3 + 3
    assert 20 <= received - 60 <= 31  # of the first half; the last frame may be cut
    states = ["connected", "interrupted", "failed", "connected", "interrupted", "failed", "failed"]
    assert [e.state for e in events] == states  # the third failure is the error
    assert clock.waits[:2] == [1, 2]
    assert not [t for t in threading.enumerate() if t.name.startswith("ffn live")]
    assert open_files() <= before


@pytest.mark.slow
def test_a_server_that_falls_silent(content) -> None:
    clock, events = Quick(), []
    with Server(content, None, None) as server:
        source = open_source(server.address, timeout=0.5, attempts=0)
        began = time.monotonic()
        with pytest.raises(VideoError, match=r"interrupted: no data for 0\.5 s; gave up after 0 "):
            list(LivePredictor(Network(clock), source, 0.4, on_event=events.append, clock=clock))
        assert 0.5 <= time.monotonic() - began < 5
    assert [e.state for e in events] == ["connected"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rtsp", "udp"])
def test_a_stream_in_real_time(kind) -> None:
    """Six seconds at 25 frames per second; over RTSP, the sender connects to the reader."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"{kind}://127.0.0.1:{port}" + ("/live" if kind == "rtsp" else "")
    options = {"timeout": 20.0, "attempts": 0}
    if kind == "rtsp":
        listens = {"rtsp_flags": "listen", "listen_timeout": "60"}
        options |= {"timeout": 60.0, "options": listens}
    source = open_source(address, **options)
    sender = subprocess.Popen([sys.executable, SENDER, address])
    answers = []
    with suppress(VideoError):  # over UDP, a stream ends by giving no more data
        clock = Quick()
        answers.extend(LivePredictor(Network(clock), source, 1.0, step=0.2, frames=4, clock=clock))
    assert sender.wait(60) == 0
    assert 100 <= answers[-1].received <= 150  # the first may come before the reader is ready
    assert answers[-1].time == pytest.approx((answers[-1].received - 1) / 25, abs=0.1)
    assert np.median([a.latency_ms for a in answers]) < 200


def open_files() -> int:
    """Open files and sockets of this process; 0 where /proc is missing."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
