"""Cascades on stored logits, against plain loops over videos and exhaustive search."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from functools import cache

import pytest
import torch
from cascade_predictions import GMACS, predictions
from safetensors import safe_open
from safetensors.torch import save_file

from ffn.evaluation.cascades.calibration import cross_fit
from ffn.evaluation.cascades.cascade import raw_accuracy, select
from ffn.evaluation.cascades.file import CascadeFile, path_digests
from ffn.evaluation.cascades.fit import CascadeFit, Point, fit_cascades
from ffn.evaluation.cascades.report import less_or_more, save_report
from ffn.evaluation.cascades.trials import half_trials, mean_trial, oracles, trial

KEPT = predictions()
OTHER = predictions(60, seed=1)


@cache
def fitted() -> CascadeFit:
    return fit_cascades(KEPT, (2, 4, 8), GMACS)


@cache
def out_of_fold(stack: tuple[int, ...]) -> torch.Tensor:
    return cross_fit([KEPT.logits[n] for n in stack], KEPT.label).probabilities


def outcome(point, probabilities, label) -> tuple[float, float]:
    """Accuracy and cost of a cascade, video by video.

    Args:
        point: stages and thresholds.
        probabilities: of each stage, (N, K).
        label: (N,).
    """
    right, cost = 0, 0.0
    for video in range(len(label)):
        for number, count in enumerate(point.stages):
            cost += GMACS[count]
            answer = probabilities[number][video].tolist()
            last = number == len(point.stages) - 1
            if last or max(answer) >= point.thresholds[number]:
                right += answer.index(max(answer)) == int(label[video])
                break
    return 100 * right / len(label), cost / len(label)


def test_points_have_the_accuracy_and_cost_of_a_loop_over_videos() -> None:
    fit = fitted()
    assert len(fit.points) > 5
    assert {len(point.stages) for point in fit.points} >= {1, 2}
    for point in fit.points:
        found = [out_of_fold(point.stages[: n + 1]) for n in range(len(point.stages))]
        expected = outcome(point, found, KEPT.label)
        assert (point.accuracy, point.gmacs) == pytest.approx(expected)


def test_no_two_stages_are_better_than_the_points() -> None:
    """All thresholds that divide the videos differently at the levels that are tried."""
    fit = fitted()
    for stages in itertools.combinations(GMACS, 2):
        found = [out_of_fold(stages[:1]), out_of_fold(stages)]
        for level in range(1, 49):
            threshold = float(found[0].amax(1).quantile(level / 49))
            point = replace(fit.points[0], stages=stages, thresholds=(threshold,))
            accuracy, cost = outcome(point, found, KEPT.label)
            assert fit.within(cost + 1e-9).accuracy >= accuracy - 1e-6
            assert fit.for_accuracy(accuracy - 1e-6).gmacs <= cost + 1e-9


def test_the_cheapest_cascade_of_an_accuracy_and_the_best_of_a_budget() -> None:
    fit = fitted()
    target = raw_accuracy(KEPT, 8)
    assert fit.raw == {n: raw_accuracy(KEPT, n) for n in GMACS}

    chosen = fit.for_accuracy()

    assert chosen.accuracy >= target
    assert all(p.accuracy < target for p in fit.points if p.gmacs < chosen.gmacs)
    within = fit.within(1.0)
    assert within.gmacs <= 1.0
    assert all(p.gmacs > 1.0 for p in fit.points if p.accuracy > within.accuracy)
    with pytest.raises(ValueError, match=r"no cascade reaches an accuracy of 99.90 %.*at most"):
        fit.for_accuracy(99.9)
    with pytest.raises(ValueError, match=r"budget is 0.4 GMACs; the cheapest cascade takes 0.5"):
        fit.within(0.4)


def test_the_default_cascade_costs_no_more_than_the_largest_count() -> None:
    """The most accurate one of this cost, where none reaches the accuracy, or only for more."""
    cheap = Point((2,), (), 50.0, 1.0)
    middle, dear = Point((2, 8), (0.5,), 70.0, 4.0), Point((2, 4, 8), (0.9, 0.9), 80.0, 6.0)
    fit = replace(fitted(), points=(cheap, middle, dear), gmacs={2: 1.0, 8: 4.5})

    for raw, expected in ((50.0, cheap), (65.0, middle), (75.0, middle), (90.0, middle)):
        assert replace(fit, raw={2: 50.0, 8: raw}).for_accuracy() == expected
    assert fit.for_accuracy(75.0) == dear  # a demand of the user


def test_costs_in_words() -> None:
    assert [less_or_more(x) for x in (17.2, 0.0, -0.3, -39)] == [
        *("17 % less", "0 % less", "0 % less", "39 % more")
    ]


def test_running_a_cascade_equals_a_loop_over_videos() -> None:
    fit = fitted()
    point = next(p for p in fit.points if len(p.stages) == 3)
    cascade = fit.cascade(point)
    stacks = [point.stages[: n + 1] for n in range(3)]
    found = [fit.calibrations[s]([OTHER.logits[n] for n in s]).softmax(1) for s in stacks]

    measured = cascade.measure(OTHER, GMACS)

    expected = outcome(point, found, OTHER.label)
    assert (measured.accuracy, measured.gmacs) == pytest.approx(expected)
    assert sum(measured.shares) == pytest.approx(100)
    frames = sum(
        share / 100 * sum(point.stages[: n + 1]) for n, share in enumerate(measured.shares)
    )
    assert measured.frames == pytest.approx(frames)
    answers = cascade.run(OTHER.logits)
    for video in range(60):
        stage = int(answers.stage[video])
        assert torch.equal(answers.probabilities[video], found[stage][video])


def test_a_video_that_cannot_be_decoded_is_wrong_and_costs_nothing() -> None:
    ok = torch.arange(60) >= 6
    logits = {n: x.where(ok[:, None], torch.nan) for n, x in OTHER.logits.items()}
    broken = replace(OTHER, ok=ok, logits=logits)
    cascade = fitted().cascade(fitted().for_accuracy())

    whole, part = (cascade.measure(p, GMACS) for p in (broken, select(OTHER, ok)))

    assert whole.accuracy == pytest.approx(part.accuracy * 54 / 60)
    assert whole.gmacs == part.gmacs
    clean = fit_cascades(select(KEPT, torch.arange(120) >= 6), (2, 8), GMACS)
    ok = torch.arange(120) >= 6
    logits = {n: x.where(ok[:, None], torch.nan) for n, x in KEPT.logits.items()}
    assert fit_cascades(replace(KEPT, ok=ok, logits=logits), (2, 8), GMACS).points == clean.points


def test_oracles_equal_an_exhaustive_search() -> None:
    few = select(OTHER, torch.arange(60) < 7)
    fit = fitted()
    cascade = fit.cascade(next(p for p in fit.points if len(p.stages) == 3))
    stacks = [cascade.stages[: n + 1] for n in range(3)]
    found = [fit.calibrations[s]([few.logits[n] for n in s]).argmax(1) for s in stacks]
    cost = [0.5, 1.5, 3.5]
    costs = {"gmacs": GMACS, "ms": {n: 10 * gmacs for n, gmacs in GMACS.items()}}
    for target in (30.0, 50.0, 60.0):
        least = min(
            sum(cost[s] for s in stages) / 7
            for stages in itertools.product(range(3), repeat=7)
            if sum(int(found[s][v] == few.label[v]) for v, s in enumerate(stages)) >= target * 0.07
        )
        assert oracles(cascade, few, costs, target)["least_cost"]["gmacs"] == pytest.approx(least)
    until = []
    for video in range(7):
        right = [s for s in range(3) if found[s][video] == few.label[video]]
        until.append(cost[min(right, default=2)])
    stops = oracles(cascade, few, costs, 50.0)["stops_when_right"]
    assert stops["gmacs"] == pytest.approx(sum(until) / 7)
    assert stops["ms"] == pytest.approx(10 * sum(until) / 7)


def test_a_target_in_percent_needs_no_video_more() -> None:
    """100 * k / n * n / 100 may be above k."""
    fit = fitted()
    cascade = fit.cascade(next(p for p in fit.points if len(p.stages) == 3))
    for videos in (7, 11, 23, 49):
        few = select(OTHER, torch.arange(60) < videos)
        for right in range(1, videos // 2):
            best = oracles(cascade, few, {"gmacs": GMACS}, 100 * right / videos)["least_cost"]
            assert best["accuracy"] == pytest.approx(100 * right / videos)


def test_predictions_that_cannot_have_a_cascade_are_refused() -> None:
    several = replace(KEPT, label=torch.zeros(120, 3))
    with pytest.raises(ValueError, match="several labels; a cascade needs one label per video"):
        fit_cascades(several, (2, 8), GMACS)
    with pytest.raises(ValueError, match="no logits at 5 frames; they have 2, 4, 8"):
        fit_cascades(KEPT, (2, 5), GMACS)
    with pytest.raises(ValueError, match="no video that can be decoded"):
        fit_cascades(replace(KEPT, ok=torch.zeros(120, dtype=torch.bool)), (2, 8), GMACS)
    many = replace(KEPT, logits=dict.fromkeys(range(1, 9), KEPT.logits[2]))
    with pytest.raises(ValueError, match=r"8 counts to choose the stages from.*at most 6"):
        fit_cascades(many, range(1, 9), dict.fromkeys(range(1, 9), 1.0))


def test_the_fit_of_a_half_does_not_see_the_other_half() -> None:
    halves = half_trials(KEPT, (2, 8), GMACS, CascadeFit.for_accuracy)
    first = torch.randperm(120, generator=torch.Generator().manual_seed(0)) < 60
    fit = fit_cascades(select(KEPT, first), (2, 8), GMACS)

    point = fit.for_accuracy()
    assert halves[0]["cascade"]["thresholds"] == point.thresholds
    measured = fit.cascade(point).measure(select(KEPT, ~first), GMACS)
    assert halves[0]["cascade"]["accuracy"] == measured.accuracy
    assert [h["videos"] for h in halves] == [60, 60]
    seen = {n: raw_accuracy(select(KEPT, first), n) for n in GMACS}
    at = halves[0]["budgets"][-1]["fixed"]
    assert at["frames"] == max(seen, key=lambda n: (seen[n], -n))
    assert at["accuracy"] == raw_accuracy(select(KEPT, ~first), at["frames"])
    mean = mean_trial(halves)["cascade"]["accuracy"]
    assert mean == pytest.approx(sum(h["cascade"]["accuracy"] for h in halves) / 2)


def test_a_file_keeps_the_cascade(tmp_path) -> None:
    fit, names = fitted(), ("a", "b", "c")
    file = CascadeFile(fit, fit.for_accuracy(), "0" * 64, "net", names, path_digests(KEPT.paths))
    file.save(tmp_path / "c.safetensors")

    loaded = CascadeFile.load(tmp_path / "c.safetensors")

    one, other = (x.cascade.run(OTHER.logits) for x in (file, loaded))
    assert torch.equal(one.probabilities, other.probabilities)
    assert torch.equal(one.stage, other.stage)
    assert (loaded.chosen, loaded.classes, loaded.fit.gmacs) == (file.chosen, names, GMACS)
    assert loaded.fit.points[0] == fit.points[0]
    assert loaded.fit.points[-1] == fit.points[-1]
    loaded.check_network("0" * 64, "same")
    with pytest.raises(ValueError, match=r"belongs to net with SHA-256 0000.*new has 1111.*Fit"):
        loaded.check_network("1" * 64, "new")
    loaded.check_new(OTHER.paths)
    with pytest.raises(ValueError, match="1 of 61 videos are among the 120"):
        loaded.check_new([*OTHER.paths, KEPT.paths[5]])


@pytest.mark.parametrize("fitted_to", ["relative", "absolute"])
def test_videos_of_the_fit_are_known_by_relative_and_absolute_paths(
    fitted_to: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {"relative": ["../data/1.mp4", "v/2.mp4"]}
    paths["absolute"] = [os.path.abspath(path) for path in paths["relative"]]
    fit, seen = fitted(), path_digests(paths[fitted_to])
    file = CascadeFile(fit, fit.for_accuracy(), "0" * 64, "net", ("a", "b", "c"), seen)

    file.check_new(["data/1.mp4", "/v/2.mp4"])
    for same in paths.values():
        with pytest.raises(ValueError, match="1 of 2 videos are among the 2"):
            file.check_new(["new.mp4", same[0]])
        with pytest.raises(ValueError, match="2 of 2 videos are among the 2"):
            file.check_new(same)


def test_other_files_are_refused(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*; expected the file of"):
        CascadeFile.load(tmp_path / "none.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"no tensors")
    for name in "ab":
        with pytest.raises(ValueError, match="is no cascade; expected the file of"):
            CascadeFile.load(tmp_path / f"{name}.safetensors")
    fit = fitted()
    file = CascadeFile(fit, fit.for_accuracy(), "0" * 64, "net", ("a", "b", "c"), torch.ones(1))
    file.save(tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", framework="pt") as opened:
        content = json.loads(opened.metadata()["cascade"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    for change, message in (
        ({"format": 2}, "has format 2; expected"),
        ({"classes": ["a", "b"]}, "is damaged .*matrices of shape"),
        ({"chosen": {}}, "is damaged"),
        ({"penalties": []}, "is damaged"),
        *(
            ({"chosen": content["chosen"] | change}, f"is damaged .*{next(iter(change))}")
            for change in (
                *({"stages": stages} for stages in ([], ["2"], [8, 2], [2, 2], [0, 8], [True, 8])),
                {"stages": [2, 8], "thresholds": []},
                {"stages": [2], "thresholds": [0.5]},
                {"stages": [2, 8], "thresholds": [float("nan")]},
            )
        ),
        ({"chosen": content["chosen"] | {"stages": [2, 8], "thresholds": ["x"]}}, "is damaged"),
        ({"chosen": content["chosen"] | {"accuracy": []}}, "is damaged"),
    ):
        save_file(tensors, tmp_path / "d.safetensors", {"cascade": json.dumps(content | change)})
        with pytest.raises(ValueError, match=message):
            CascadeFile.load(tmp_path / "d.safetensors")
    for content in ("[]", "3", "null"):
        save_file(tensors, tmp_path / "d.safetensors", {"cascade": content})
        with pytest.raises(ValueError, match="is no cascade; expected the file of"):
            CascadeFile.load(tmp_path / "d.safetensors")


def test_a_report_has_the_numbers_of_its_trials(tmp_path) -> None:
    fit = fitted()
    networks = {
        f"net.s{seed}": [trial(fit, fit.for_accuracy(), predictions(60, seed + 1), GMACS)]
        for seed in range(2)
    }
    files = save_report(networks, tmp_path / "out", "how it was made")

    content = json.loads(files[0].read_text())
    values = [trials[0]["cascade"]["accuracy"] for trials in networks.values()]
    assert content["mean"]["cascade"]["accuracy"] == pytest.approx(sum(values) / 2)
    text = files[1].read_text()
    deviation = abs(values[0] - values[1]) / 2**0.5
    assert f"| cascade | {sum(values) / 2:.1f} ± {deviation:.1f} |" in text
    lines = files[2].read_text().splitlines()
    assert lines[0] == "rule,budget_gmacs,accuracy,accuracy_std,gmacs,ms"
    raw = [trials[0]["fixed"][8]["raw"] for trials in networks.values()]
    row = next(line for line in lines if line.startswith('"8 frames, raw"'))
    assert float(row.split(",")[3]) == pytest.approx(sum(raw) / 2)
    assert files[3].read_bytes()[:4] == b"\x89PNG"


def test_a_report_with_latencies(tmp_path) -> None:
    """The time of a cascade is that of all its stages; a large fixed cost makes it slower."""
    latencies = {n: 10.0 + n for n in GMACS}
    fit = fitted()
    point = next(p for p in fit.points if len(p.stages) == 3)
    one = trial(fit, point, OTHER, GMACS, latencies=latencies)

    totals = torch.tensor([12.0, 26.0, 44.0])  # of stages 2, 4 and 8
    stage = fit.cascade(point).run(OTHER.logits).stage
    assert one["cascade"]["ms"] == pytest.approx(float(totals[stage].mean()))
    assert {n: row["ms"] for n, row in one["fixed"].items()} == latencies
    for row in one["budgets"]:
        assert row["fixed"]["ms"] == latencies[row["fixed"]["frames"]]
    for row in one["curve"]:
        stage = fit.cascade(fit.within(row["budget"])).run(OTHER.logits).stage
        totals = torch.tensor([latencies[n] for n in row["stages"]]).cumsum(0)
        assert row["ms"] == pytest.approx(float(totals[stage].mean()))

    files = save_report({"net": [one]}, tmp_path / "out", "how", "fused, fp32, a machine")
    assert json.loads(files[0].read_text())["timing"] == "fused, fp32, a machine"
    text = files[1].read_text()
    assert "| less than the largest count | ms |" in text
    assert f"the chosen cascade takes {one['cascade']['ms']:.3g} ms" in text
    assert "8 frames take 18 ms" in text
    assert "fused, fp32, a machine." in text
    row = next(x for x in files[2].read_text().splitlines() if x.startswith('"8 frames, raw"'))
    assert row.endswith(",18.0")
    without = trial(fit, point, OTHER, GMACS)
    with pytest.raises(ValueError, match="only some of them have latencies"):
        save_report({"net": [one], "other": [without]}, tmp_path / "both", "how")
