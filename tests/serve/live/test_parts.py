"""Parts of live prediction: the ring, the schedule, the load control, and the steady labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ffn.serve.live.load import HOLD, MARGIN, LoadControl, handful
from ffn.serve.live.ring import Frame, Ring, Schedule
from ffn.serve.live.smoothing import Smoothing, SteadyLabels


def frame(number: int, time: float, size: int = 2) -> Frame:
    return Frame(number, time, 100 + time, torch.zeros(3, size, size, dtype=torch.uint8), 1.0)


@pytest.mark.parametrize("rate", [5, 12.5, 24, 30, 60])
def test_the_ring_keeps_the_frames_of_its_window(rate) -> None:
    ring, times = Ring(2.0, 10**6), [n / rate for n in range(int(7 * rate))]
    for number, time in enumerate(times):
        assert ring.add(frame(number, time)) == 0
        kept = [f.time for f in ring.frames()]
        assert kept == [t for t in times[: number + 1] if t > time - 2 + 1e-9]
        assert ring.bytes == 12 * len(kept)
        # As a window of a file: the frames that start in 2 s.
        assert ring.full == (number + 1 >= math.floor(2 * rate))


def test_times_in_milliseconds_fill_the_window_with_the_same_frame() -> None:
    for rate in (24, 30, 60):
        ring = Ring(1.0, 10**6)
        for number in range(rate):
            assert not ring.full
            ring.add(frame(number, round(1000 * number / rate) / 1000))
        assert ring.full


def test_the_ring_is_bounded_in_bytes() -> None:
    ring = Ring(10.0, 5 * 12)
    dropped = [ring.add(frame(n, 0.1 * n)) for n in range(20)]
    assert dropped == [0] * 5 + [1] * 15
    assert [f.number for f in ring.frames()] == list(range(15, 20))
    assert ring.full
    assert ring.add(frame(20, 2.0, size=9)) == 5  # the newest frame alone is larger
    assert [f.number for f in ring.frames()] == [20]
    ring.clear()
    assert (ring.bytes, ring.newest, ring.full) == (0, None, False)


def test_windows_and_steps_that_are_too_short() -> None:
    with pytest.raises(ValueError, match=r"window is 1e-09 s; expected 0\.001 s or more"):
        Ring(1e-9, 100)
    with pytest.raises(ValueError, match=r"step is 1e-09 s; expected 1e-06 s or more"):
        Schedule(None, 1e-9)
    ring = Ring(1e-3, 100)  # shorter than a frame: it holds the newest one
    for number in range(3):
        ring.add(frame(number, number / 10))
        assert [f.number for f in ring.frames()] == [number]
    assert ring.full


def due(schedule: Schedule, numbers, rate: float, first: int) -> list[int]:
    return [n for n in numbers if schedule.is_due(frame(n, n / rate), n >= first)]


def test_answers_are_due_at_equal_steps() -> None:
    assert due(Schedule(8, None), range(60), 20, 39) == [39, 47, 55]
    assert due(Schedule(None, 0.5), range(60), 20, 39) == [39, 49, 59]
    # Frames 50 to 70 are missing: the first one after them stands for all that fell due.
    numbers = [*range(50), *range(71, 90)]
    assert due(Schedule(8, None), numbers, 20, 39) == [39, 47, 71, 79, 87]
    assert due(Schedule(None, 1 / 3), range(3000), 30, 0) == list(range(0, 3000, 10))


def test_the_interval_is_that_of_the_clock() -> None:
    """Twice its rate: 20 frames per second arrive in half a second."""
    window = [Frame(n, n / 20, 7 + n / 40, torch.zeros(1), 0.0) for n in range(20)]
    assert Schedule(8, None).interval(window) == pytest.approx(8 / 40)
    assert Schedule(None, 0.5).interval(window) == pytest.approx(0.25)
    assert Schedule(8, None).interval(window[:1]) == math.inf


def test_a_handful_of_counts() -> None:
    assert handful([16, 4, 8]) == [4, 8, 16]
    assert handful(range(2, 21)) == [2, 4, 6, 11, 20]
    assert handful(range(1, 65)) == [1, 3, 8, 23, 64]
    assert handful([3, 4, 5, 6, 7, 8]) == [3, 4, 5, 6, 8]


class Machine:
    """Answers of T frames take 10 T ms times its load; one is due every 200 ms."""

    def __init__(self, interval: float = 0.2, ratio: float = 1.0) -> None:
        self.control = LoadControl({count: 0.01 * count for count in (4, 8, 16)})
        self.interval, self.ratio, self.now = interval, ratio, 0.0
        self.counts: list[int] = []

    def run(self, seconds: float, load: float, *, noise: float = 0.0, late: bool = False) -> None:
        random = np.random.default_rng(0)
        for _ in range(round(seconds / self.interval)):
            count = self.control.count
            self.counts.append(count)
            # Under load, larger counts may take more than their share.
            taken = 0.01 * count * load * (self.ratio if count == 16 and load > 1 else 1)
            self.now += self.interval
            taken *= math.exp(noise * random.normal())
            self.control.update(taken, self.interval, self.now, late=late)

    def changes(self) -> int:
        return sum(a != b for a, b in zip(self.counts, self.counts[1:], strict=False))


def test_the_count_falls_with_the_load_and_rises_after_it() -> None:
    machine = Machine()
    machine.run(60, 1)
    assert set(machine.counts) == {16}  # 160 ms of 200
    machine.run(60, 2)  # 320 ms: too slow; 160 ms fits
    assert machine.control.count == 8
    assert machine.control.why.startswith("16 frames are too slow: ")
    assert machine.changes() == 1
    machine.run(60, 4)
    assert (machine.control.count, machine.changes()) == (4, 2)
    machine.run(60, 0.5)
    assert (machine.control.count, machine.changes()) == (16, 4)
    assert machine.control.why == "the largest count"


def test_a_higher_count_must_fit_with_a_margin_for_a_while() -> None:
    machine = Machine()
    machine.run(20, 2)
    machine.run(60, 0.01 + MARGIN * 200 / 160)  # 16 frames would take a little above 70 %
    assert machine.control.count == 8
    before = len(machine.counts)
    machine.run(60, MARGIN * 200 / 160 - 0.01)
    held = next(n for n, count in enumerate(machine.counts[before:]) if count == 16)
    assert HOLD <= held * machine.interval <= HOLD + 3  # the factor takes some answers to fall
    assert machine.changes() == 2


@pytest.mark.parametrize("load", [0.5, 0.9, 1.1, 1.25, 1.6, 2.4, 3.0])
def test_noise_does_not_make_it_oscillate(load) -> None:
    """Ten minutes; single answers take up to twice or half their time."""
    machine = Machine()
    machine.run(600, load, noise=0.25)
    assert machine.changes() <= 16


def test_a_count_that_fails_again_and_again_is_tried_less_often() -> None:
    """16 frames take 480 ms where 100 ms are expected: a try every 80 s, not every 5 s."""
    machine = Machine(ratio=3.0)
    machine.control = LoadControl({4: 0.04, 8: 0.08, 16: 0.1})
    machine.run(1800, 1.001)
    assert 1800 / (17 * HOLD) - 3 <= machine.changes() / 2 <= 1800 / (12 * HOLD) + 5
    assert machine.counts.count(16) < 0.02 * len(machine.counts)


def test_late_frames_lower_the_count() -> None:
    machine = Machine()
    machine.run(0.2, 0.1, late=True)
    assert machine.control.count == 8
    assert machine.control.why == "16 frames are too slow: frames came late"
    machine.run(60, 0.1, late=True)
    assert machine.control.count == 4


def test_a_given_count_stays() -> None:
    control = LoadControl({8: 0.01}, "")
    control.update(1.0, 0.1, 1.0, late=True)
    assert (control.count, control.why) == (8, "")


def test_the_average_forgets_by_its_time_constant() -> None:
    """Against the sum written out: each answer counts with exp(-age / s), by its share of time."""
    random = np.random.default_rng(0)
    times = np.cumsum(random.uniform(0.1, 1, 30))
    values = random.dirichlet([1, 1, 1], 30)
    labels = SteadyLabels(Smoothing(seconds=1.5, margin=0, dwell=0))
    for n, time in enumerate(times):
        labels.update(torch.tensor(values[n]), float(time))
        ages = np.exp(-(time - times[: n + 1]) / 1.5)
        weights = ages - np.concatenate([[0], ages[:-1]])  # of answer i: e_i - e_(i-1)
        torch.testing.assert_close(labels.probabilities, torch.tensor(weights @ values[: n + 1]))
        assert labels.shown == (int((weights @ values[: n + 1]).argmax()),)


def show(labels: SteadyLabels, *rows: tuple[float, ...], step: float = 0.5) -> list[tuple]:
    shown = []
    for n, row in enumerate(rows):
        changed = labels.update(torch.tensor(row), n * step)
        assert changed == (not shown or labels.shown != shown[-1])
        shown.append(labels.shown)
    return shown


def test_a_label_changes_by_margin_or_after_a_while() -> None:
    raw = Smoothing(seconds=0, margin=0.2, dwell=1.0)
    near, far, back = (0.45, 0.55), (0.3, 0.7), (0.55, 0.45)
    assert show(SteadyLabels(raw), (0.6, 0.4), far) == [(0,), (1,)]
    assert show(SteadyLabels(raw), (0.6, 0.4), near, near, near) == [(0,), (0,), (0,), (1,)]
    assert show(SteadyLabels(raw), back, near, near, back, near, near) == [(0,)] * 6
    # Two others that lead in turns have led for a second together.
    rows = [(0.4, 0.3, 0.3), (0.32, 0.36, 0.32), (0.32, 0.32, 0.36), (0.32, 0.36, 0.32)]
    assert show(SteadyLabels(raw), *rows) == [(0,), (0,), (0,), (1,)]


def test_several_labels_are_shown_one_by_one() -> None:
    labels = SteadyLabels(Smoothing(seconds=0, margin=0.2, dwell=1.0), multi_label=True)
    rows = [(0.9, 0.1), (0.6, 0.8), (0.4, 0.4), (0.4, 0.6), (0.4, 0.6)]
    assert show(labels, *rows) == [(0,), (0, 1), (0, 1), (0, 1), (1,)]
    assert show(SteadyLabels(Smoothing(), multi_label=True), (0.2, 0.3)) == [()]


@pytest.mark.parametrize("values", [{"seconds": -1}, {"margin": math.nan}, {"dwell": "1"}])
def test_wrong_smoothing(values) -> None:
    (name,) = values
    with pytest.raises(ValueError, match=f"smoothing: {name} is .*; expected a number of 0 or"):
        Smoothing(**values)
