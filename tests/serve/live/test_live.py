"""Live prediction: the answers of files, load and latency over simulated time, and its thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from live_network import Network, camera
from serve_files import save_network, write_video
from simulated_clock import SimulatedClock

from ffn.data import Normalize, VideoError
from ffn.export import Stream, stream
from ffn.serve import LivePredictor, Predictor, open_source
from ffn.serve.live.rules import Frame
from ffn.serve.live.sources import Source


def camera_frames(footage: torch.Tensor, times: list[float], start: float) -> Iterator[tuple]:
    for time, image in zip(times, footage, strict=True):
        yield Frame(time, start + time), lambda image=image: image


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("ffn live")]


@pytest.mark.parametrize("span", [0, 12])  # a window has 8 frames
def test_a_file_has_the_answers_of_its_windows(predictor, footage, tmp_path, monkeypatch, span):
    """Bit by bit, the last one included; with a simulated clock, at no time."""
    monkeypatch.setattr(predictor, "preprocessing", replace(predictor.preprocessing, span=span))
    given, clock = str(write_video(tmp_path / "a.mp4", footage, rate=10)), SimulatedClock()
    windows = list(predictor.windows(given, 0.8, step=0.3, frames=6, batch_size=1))

    answers = list(LivePredictor(predictor, given, 0.8, step=0.3, frames=6, pace=clock))
    assert len(answers) == len(windows)
    for answer, window in zip(answers, windows, strict=True):
        found = answer.prediction
        assert (found.indices, found.active) == (window.indices, window.active)
        assert torch.equal(found.probabilities, window.probabilities)
        assert (found.start, found.end) == pytest.approx((window.start, window.end))
    assert not threads()
    assert clock.now() == pytest.approx(6.9)  # its own rate
    assert [(a.dropped, a.skipped) for a in answers] == [(0, 0)] * len(windows)
    assert [a.latency_ms for a in answers] == pytest.approx([0] * len(windows))
    assert answers[-1].received == 70


def test_ten_minutes_with_a_load_in_the_middle() -> None:
    """Answers take 10 T ms, and 5 times that from second 200 to 400; one is due every 400 ms."""
    clock = SimulatedClock()
    network = Network(clock, lambda count, now: 0.01 * count * (5 if 200 < now < 400 else 1))
    live = LivePredictor(network, camera(clock, 600), 2.0, step=0.4, pace=clock)
    answers = list(live)

    at = {a.time: a.prediction.frames for a in answers}
    assert {frames for time, frames in at.items() if time < 200} == {16}
    assert {frames for time, frames in at.items() if 206 < time < 400} <= {4, 8}
    assert {frames for time, frames in at.items() if time > 415} == {16}
    assert sum(a != b for a, b in pairwise(at.values())) <= 5
    # Of 16 frames under load, and a step.
    assert max(a.latency_ms for a in answers) <= 800 + 400 + 1e-6
    last = answers[-1]
    assert (last.received, last.dropped) == (3000, 0)
    assert last.skipped <= 3
    assert len(answers) + last.skipped == pytest.approx(3000 / 2, abs=6)


@pytest.fixture
def causal(tmp_path) -> Predictor:
    more = {"model_args": {"causal": True}}
    path = save_network(tmp_path / "causal.safetensors", spread=0.1, **more)
    return Predictor(path, precision="fp32")


def streamed(causal: Predictor, frames: torch.Tensor) -> torch.Tensor:
    """The probabilities after the last frame; the average forgets with 8 frames."""
    clip = causal.reader(len(frames)).read(frames).pixels
    clip = Normalize(causal.preprocessing)(clip[None])[0]
    steps = stream(causal.model, window=8)
    return [steps.step(frame) for frame in clip.unbind(1)][-1].softmax(0)


@pytest.mark.parametrize("rate", [8, 10, 16, 40])
def test_a_causal_network_reads_eight_frames_in_a_window(causal, footage, rate) -> None:
    """Of one second, so 8 per second; the times of frames are rounded."""
    times = [round(n / rate, 2) for n in range(70)]
    kept, due = [], 0.0
    for n, time in enumerate(times):
        if time >= due - 0.25 / 8:
            kept, due = [*kept, n], due + 1 / 8
    source = Source("camera", lambda now: camera_frames(footage, times, now()))
    live = LivePredictor(causal, source, 1.0, step=0.5, pace=SimulatedClock())
    *_, last = live
    found = last.prediction
    assert (found.frames, found.network) == (8, "stream, fp32")
    assert found.indices == tuple(kept[-len(found.indices) :])
    assert len(found.indices) in (7, 8, 9)
    expected = streamed(causal, footage[kept])
    torch.testing.assert_close(found.probabilities, expected, rtol=0, atol=1e-5)


def test_a_causal_network_of_fewer_frames(causal, footage) -> None:
    source = open_source(footage, fps=10)
    every_second = LivePredictor(causal, source, 0.8, step=1, frames=4, pace=SimulatedClock())
    assert {a.prediction.indices[-1] % 2 for a in every_second} == {0}
    with pytest.raises(ValueError, match=r"frames is 3; .* \[2, 4, 8\]"):
        LivePredictor(causal, source, frames=3)


def test_a_causal_network_begins_again_after_an_interruption(causal, footage) -> None:
    """Also if the first frame after it is late, and dropped."""

    def frames(now: Callable[[], float]) -> Iterator[tuple]:
        for n, image in enumerate(footage):
            captured = now() - (2 if n == 40 else 0)
            yield Frame(n / 10, captured, int(n >= 40)), lambda image=image: image

    source, clock = Source("camera", frames), SimulatedClock()
    *_, last = LivePredictor(causal, source, 0.8, step=1, frames=8, pace=clock)
    assert (last.prediction.indices, last.dropped) == ((*range(62, 70),), 1)
    expected = streamed(causal, footage[41:])
    torch.testing.assert_close(last.prediction.probabilities, expected, rtol=0, atol=1e-5)


def test_the_stride_follows_the_load(causal, monkeypatch) -> None:
    """A frame comes every 200 ms and takes 50 ms, but 300 ms from second 20 to 40.

    The first frame of a stride takes 9 s.
    """
    clock, step, built, start = SimulatedClock(), Stream.step, set(), math.inf

    def spend(self: Stream, frame: torch.Tensor) -> torch.Tensor:
        clock.spend(0.3 if 20 < clock.now() - start < 40 else 0.05)
        clock.spend(0.0 if self.stride in built else 9.0)
        built.add(self.stride)
        return step(self, frame)

    monkeypatch.setattr(Stream, "step", spend)
    live = LivePredictor(causal, camera(clock, 80), 1.6, step=0.4, pace=clock)
    start = clock.now()
    answers = list(live)
    at = {a.time: a.prediction.frames for a in answers}
    assert {frames for time, frames in at.items() if time < 19} == {8}
    assert {frames for time, frames in at.items() if 24 < time < 38} == {4}
    assert {frames for time, frames in at.items() if time > 48} == {8}
    assert max(a.latency_ms for a in answers) < 1300
    assert (answers[-1].received, answers[-1].dropped) == (400, 0)


def test_answers_are_skipped_if_the_smallest_count_is_too_slow() -> None:
    """An answer takes 1.3 s or more, one is due every 0.4 s: the last that fell due is given."""
    clock = SimulatedClock()
    network = Network(clock, lambda count, now: 1.26 + 0.01 * count)
    answers = list(LivePredictor(network, camera(clock, 300), 2.0, step=0.4, pace=clock))

    assert answers[-1].prediction.frames == 4
    assert answers[-1].prediction.why == "8 frames are too slow"
    latest = [a.latency_ms for a in answers[20:-1]]
    assert min(latest) >= 1300 - 1e-6
    assert max(latest) <= 1300 + 400 + 1e-6
    skipped = [b.skipped - a.skipped for a, b in pairwise(answers[20:-2])]
    assert set(skipped) == {2, 3}  # of 3.25 that fall due
    assert answers[-1].dropped == 0


def test_a_source_that_is_late_drops_frames() -> None:
    """A reader that is stopped for 5 s: frames of more than 1 s ago are not kept."""
    clock = SimulatedClock()
    source = open_source(np.zeros((100, 2, 2, 3), np.uint8), fps=5)
    live = LivePredictor(Network(clock), source, 1.0, step=0.2, pace=clock)
    transform, stopped = live._transform, []

    def slow(image):
        if len(stopped) == 30:
            clock.spend(5.0)
        stopped.append(clock.now())
        return transform(image)

    live._transform = slow
    answers = list(live)
    # Frame 30 is due at 6 s and kept at 11 s. Frames 31 to 49 are late by more than 1 s then.
    newest = [a.prediction.indices[-1] for a in answers]
    assert newest == [*range(4, 30), *range(55, 100)]
    assert (answers[25].dropped, answers[26].dropped, answers[-1].dropped) == (0, 19, 19)
    assert answers[-1].skipped == 6  # 30, and 50 to 54
    assert max(a.latency_ms for a in answers) <= 1e-6
    # The counts follow at the next answers.
    assert [a.prediction.frames for a in answers[25:29]] == [16, 16, 8, 8]
    assert answers[27].prediction.why == "16 frames are too slow"


def test_errors_come_after_the_answers(predictor, footage, tmp_path) -> None:
    with pytest.raises(VideoError, match="no such file"):
        list(LivePredictor(predictor, str(tmp_path / "missing.mp4"), frames=2))

    def broken():
        for number in range(25):
            yield number / 10, footage[number]
        raise RuntimeError("the plug was pulled")

    answers = []
    with pytest.raises(RuntimeError, match="the plug was pulled"):
        answers.extend(LivePredictor(predictor, broken(), 1.0, step=10.0, frames=2))
    assert not threads()


def test_an_iterator_of_frames(predictor, footage) -> None:
    """Arrays or tensors, from any time on; the answers are those of a video of these frames."""
    pairs = ((1000 + n / 10, torch.from_numpy(f) if n % 2 else f) for n, f in enumerate(footage))
    (answer,) = LivePredictor(predictor, pairs, 60.0, frames=8)
    assert torch.equal(answer.prediction.probabilities, predictor(footage, frames=8).probabilities)
    for wrong in ([(0, footage[0].astype(float))], [(1, footage[0]), (1, footage[1])]):
        with pytest.raises(ValueError, match="frame"):
            list(LivePredictor(predictor, wrong, frames=2))


def test_closing(predictor, footage) -> None:
    live = LivePredictor(predictor, open_source(footage, fps=1, speed=3), 100.0, frames=2)
    answers = iter(live)
    threading.Timer(0.3, live.close).start()  # of another thread, while it waits
    assert list(answers) == []
    assert not threads()
    with pytest.raises(RuntimeError, match="iterates once"):
        next(iter(live))


def test_wrong_options_and_sources(predictor, footage) -> None:
    for options in ({"window": 0}, {"step": -1}, {"frames": 0}, {"smooth": -1}, {"margin": np.nan}):
        with pytest.raises(ValueError, match=next(iter(options))):
            LivePredictor(predictor, open_source(footage, fps=10), **options)
    with pytest.raises(TypeError, match="float"):
        open_source(1.5)
    file, stream = "a.mp4", "rtsp://camera/1"
    for given, options in ((file, {"attempts": 3}), (file, {"speed": 0}), (stream, {"speed": 2})):
        with pytest.raises(ValueError, match=next(iter(options))):
            open_source(given, **options)
