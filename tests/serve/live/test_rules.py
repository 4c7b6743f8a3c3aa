"""Parts of live prediction: the ring, the schedule, the load control, and the steady labels."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ffn.serve.live.rules import HOLD, MARGIN, Frame, LoadControl, SteadyLabels, Window


def is_due(window: Window, number: int, time: float, part: int = 0) -> bool:
    window.add(Frame(time, 0.0, part, number))
    return window.is_due


def test_the_window_keeps_its_frames_and_answers_are_due_at_equal_steps() -> None:
    for rate in (5, 12.5, 24, 30, 60):
        window, times, due = Window(2.0, 0.5), [n / rate for n in range(int(7 * rate))], []
        for number, time in enumerate(times):
            if is_due(window, number, round(1000 * time) / 1000):
                due.append(time)
            kept = [f.number for f in window.frames]
            assert kept == [n for n, t in enumerate(times[: number + 1]) if t > time - 2 + 1e-9]
        # As a window of a file: the first has the frames that start in 2 s.
        assert due[0] == times[math.floor(2 * rate) - 1]
        steps = [b - a for a, b in pairwise(due)]
        assert steps == pytest.approx([0.5] * len(steps), abs=1 / rate)


def test_an_answer_after_a_gap_stands_for_all_that_fell_due() -> None:
    window = Window(1.0, 0.4)
    numbers = [*range(50), *range(71, 90)]
    due = [n for n in numbers if is_due(window, n, n / 20)]
    assert due[:3] == [19, 27, 35]
    assert due[4:] == [71, 75, 83]
    assert not is_due(window, 90, 4.5, part=1)
    assert len(window.frames) == 1


def test_a_higher_count_must_fit_with_a_margin_for_a_while() -> None:
    """Answers of T frames take 10 T ms times the load; one is due every 200 ms."""
    control, counts = LoadControl({count: 0.01 * count for count in (4, 8, 16)}), []

    def run(seconds: float, load: float) -> None:
        for _ in range(round(5 * seconds)):
            counts.append(control.count)
            control.update(0.01 * control.count * load, 0.2, len(counts) / 5)

    run(20, 2)
    run(60, 0.01 + MARGIN * 200 / 160)  # 16 frames would take a little above 70 %
    assert control.count == 8
    before = len(counts)
    run(60, MARGIN * 200 / 160 - 0.01)
    held = counts[before:].index(16)
    assert HOLD <= held / 5 <= HOLD + 3  # the factor takes some answers to fall
    assert sum(a != b for a, b in pairwise(counts)) == 2


def test_the_average_forgets_by_its_time_constant() -> None:
    """Against the sum written out: each answer counts with exp(-age / s), by its share of time."""
    random = np.random.default_rng(0)
    times = np.cumsum(random.uniform(0.1, 1, 30))
    values = random.dirichlet([1, 1, 1], 30)
    labels = SteadyLabels(1.5, 0)
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


def test_a_label_changes_by_the_margin() -> None:
    near, far, back = (0.45, 0.55), (0.3, 0.7), (0.55, 0.45)
    assert show(SteadyLabels(0, 0.2), (0.6, 0.4), near, far, back) == [(0,), (0,), (1,), (1,)]


def test_several_labels_are_shown_one_by_one() -> None:
    labels = SteadyLabels(0, 0.2, multi_label=True)
    rows = [(0.9, 0.1), (0.6, 0.8), (0.4, 0.4), (0.2, 0.6)]
    assert show(labels, *rows) == [(0,), (0, 1), (0, 1), (1,)]
    assert show(SteadyLabels(1, 0.1, multi_label=True), (0.2, 0.3)) == [()]
