"""A report on cascades: Markdown, CSV, JSON and a figure of accuracy against cost."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.evaluation.cascades.trials import Trial, mean_trial, spread
from ffn.evaluation.plots import (
    COLORS,
    GRAY,
    add_legend,
    new_figure,
    tidy,
    write_figure,
)
from ffn.files import write_csv, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 1  # of the JSON file
SUFFIXES = (".json", ".md", ".csv", ".png")


def save_report(
    networks: Mapping[str, Sequence[Trial]], stem: Path, how: str, timing: str | None = None
) -> list[Path]:
    """Write ``STEM.json``, ``.md``, ``.csv`` and ``.png``; existing files are replaced.

    Args:
        networks: the trials of each network, as of `half_trials`; networks that differ in
            their seed alone, with the same counts.
        stem: path of the files without suffix.
        how: what the cascades were fitted to and tested on, for the table.
        timing: how latencies were measured, if the trials have them.

    Raises:
        ValueError: the networks were tested at different counts, or only some have latencies.
        ImportError: matplotlib is not installed; the other files are complete.
        OSError: a file cannot be written.
    """
    found = {name: mean_trial(trials) for name, trials in networks.items()}
    _check_alike(list(found.values()))
    mean = mean_trial(list(found.values()))
    files = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    content = {"format": FORMAT, "how": how, "timing": timing, "networks": found, "mean": mean}
    write_text(files[0], json.dumps(content, indent=1) + "\n")
    write_text(files[1], markdown(list(found.values()), how, timing))
    write_csv(files[2], _rows(list(found.values())))
    _figure(mean, files[3])
    return files


def load_report(path: Path) -> tuple[dict[str, Trial], str | None]:
    """The mean trial of each network of an earlier report, and how its latencies were measured.

    Args:
        path: its ``STEM.json``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such a file.
    """
    expected = "expected the .json file of ffn cascade report"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {name: _tuples(one) for name, one in content["networks"].items()}
        for one in found.values():
            one["fixed"] = {int(count): row for count, row in one["fixed"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a report on cascades; {expected}") from error
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {content.get('format')!r}; {expected}, format {FORMAT}"
        )
    return found, content.get("timing")


def _check_alike(found: Sequence[Trial]) -> None:
    """Raise ValueError for networks whose trials have no mean."""
    kinds = {tuple((n, *sorted(row)) for n, row in one["fixed"].items()) for one in found}
    if len(kinds) > 1:
        raise ValueError(
            "the networks were tested at different frame counts, or only some of them have "
            "latencies; use the same for all"
        )


def _tuples(value: Any) -> Any:
    """JSON values with tuples in place of lists of numbers in lists, as in a mean of trials."""
    if isinstance(value, dict):
        return {key: _tuples(one) for key, one in value.items()}
    if isinstance(value, list):
        return [tuple(one) if isinstance(one, list) else _tuples(one) for one in value]
    return value


def markdown(found: Sequence[Trial], how: str, timing: str | None = None) -> str:
    """The tables of a report, and in words where cascades gain and lose.

    Raises:
        ValueError: the networks were tested at different counts, or only some have latencies.
    """
    _check_alike(found)
    mean = mean_trial(found)
    largest = max(mean["fixed"])
    most = mean["fixed"][largest]["gmacs"]
    several = "; mean ± standard deviation over the networks" if len(found) > 1 else ""
    lines = [f"Cascades: {how}{several}.", "", _chosen(mean, largest), ""]
    header = ["rule", "accuracy (%)", "GMACs", "less than the largest count"]
    header += ["ms"] * (timing is not None)
    lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]

    def line(name: str, get: Callable[[Trial], dict[str, Any]], key: str) -> None:
        costs = get(mean)
        cells = [name, _cell(found, lambda t: get(t)[key]), f"{costs['gmacs']:.4g}"]
        cells.append(f"{100 * (1 - costs['gmacs'] / most):.0f} %")
        if timing is not None:
            cells.append(f"{costs['ms']:.3g}")
        lines.append("| " + " | ".join(cells) + " |")

    for count, row in mean["fixed"].items():
        if "calibrated" in row:
            for kind in ("raw", "calibrated"):
                line(f"{count} frames, {kind}", lambda t, n=count: t["fixed"][n], kind)
    line("cascade", lambda t: t["cascade"], "accuracy")
    for rule, name in {
        "stops_when_right": "oracle: goes on until it is right",
        "least_cost": f"oracle: least cost for the accuracy of {largest} frames",
    }.items():
        line(name, lambda t, rule=rule: t["oracles"][rule], "accuracy")
    lines += ["", *_budget_table(found), "", _verdict(found)]
    if timing is not None:
        lines += ["", _verdict_on_time(mean, timing)]
    return "\n".join(lines) + "\n"


def _chosen(mean: Trial, largest: int) -> str:
    cascade = mean["cascade"]
    shown = " or ".join("(" + ", ".join(map(str, s)) + ")" for s in sorted(cascade["stages"]))
    return (
        f"Chosen stages: {shown}. On the videos of the fit, out of fold, the cascade has "
        f"{cascade['expected_accuracy']:.1f} % for {cascade['expected_gmacs']:.4g} GMACs; on the "
        f"test videos {cascade['accuracy']:.1f} % for {cascade['gmacs']:.4g} GMACs and "
        f"{cascade['frames']:.1f} input frames in the mean. The cost is that of all stages that "
        f"ran. The oracles know the labels of the test videos, with the same stages and "
        f"calibrations. The largest count is {largest} frames."
    )


def _budget_table(found: Sequence[Trial]) -> list[str]:
    header = ("budget (GMACs)", "best single count", "accuracy (%)", "cascade (%)", "its GMACs")
    lines = ["Within a budget, each choice made on the videos of the fit:", ""]
    lines += ["| " + " | ".join([*header, "difference"]) + " |", "|---" * 6 + "|"]
    for n, row in enumerate(mean_trial(found)["budgets"]):
        cells = [
            f"{row['budget']:.4g}",
            " or ".join(map(str, sorted(row["fixed"]["frames"]))),
            _cell(found, lambda t, n=n: t["budgets"][n]["fixed"]["accuracy"]),
            _cell(found, lambda t, n=n: t["budgets"][n]["cascade"]["accuracy"]),
            f"{row['cascade']['gmacs']:.4g}",
            _cell(found, lambda t, n=n: _gain(t["budgets"][n]), sign="+"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _verdict(found: Sequence[Trial]) -> str:
    """Where cascades are above and below the best single count."""
    budgets = mean_trial(found)["budgets"]
    gains = [_gain(row) for row in budgets]
    above = [f"{r['budget']:.4g}" for r, gain in zip(budgets, gains, strict=True) if gain >= 0.5]
    below = [f"{r['budget']:.4g}" for r, gain in zip(budgets, gains, strict=True) if gain <= -0.5]
    mean = mean_trial(found)
    largest = max(mean["fixed"])
    row, cascade = mean["fixed"][largest], mean["cascade"]
    return (
        f"The cascade is more accurate than the best single count, by 0.5 points or more, at "
        f"{len(above)} of {len(budgets)} budgets{_list(above)}, and less accurate at "
        f"{len(below)}{_list(below)}. Against {largest} frames with a calibration of their own, "
        f"the chosen cascade has {cascade['accuracy'] - row['calibrated']:+.1f} points for "
        f"{less_or_more(cascade['saved'])} arithmetic."
    )


def _verdict_on_time(mean: Trial, timing: str) -> str:
    """What the chosen cascade and single counts take in milliseconds."""
    largest, cascade = max(mean["fixed"]), mean["cascade"]
    row = mean["fixed"][largest]
    share = less_or_more(100 * (1 - cascade["ms"] / row["ms"]))
    faster = {n: r["raw"] for n, r in mean["fixed"].items() if r["ms"] <= cascade["ms"]}
    best = max(faster, key=faster.get, default=None)
    text = (
        f"In time, the chosen cascade takes {cascade['ms']:.3g} ms of the network per video in the "
        f"mean, {largest} frames take {row['ms']:.3g} ms: {share}. "
    )
    if best is not None:
        text += (
            f"Of the single counts that take no longer than the cascade, {best} frames are the "
            f"most accurate, with {faster[best]:.1f} % in {mean['fixed'][best]['ms']:.3g} ms. "
        )
    return f"{text}Latency: the forward passes of one video at a time; {timing}."


def less_or_more(saved: float) -> str:
    """A share that is saved, in percent, in words: 17 is "17 % less", -5 is "5 % more"."""
    return f"{abs(saved):.0f} % {'more' if saved < -0.5 else 'less'}"


def _list(budgets: Sequence[str]) -> str:
    return f" ({', '.join(budgets)} GMACs)" if budgets else ""


def _gain(row: dict[str, Any]) -> float:
    return row["cascade"]["accuracy"] - row["fixed"]["accuracy"]


def _cell(found: Sequence[Trial], value: Callable[[Trial], float], sign: str = "") -> str:
    """Mean and standard deviation of percents."""
    values = [value(one) for one in found]
    deviation = spread(values)
    shown = f"{statistics.mean(values):{sign}.1f}"
    return shown if deviation is None else f"{shown} ± {deviation:.1f}"


def _rows(found: Sequence[Trial]) -> list[tuple]:
    """Accuracy and cost of everything compared, a row each, for programs."""
    mean = mean_trial(found)
    rows: list[tuple] = [("rule", "budget_gmacs", "accuracy", "accuracy_std", "gmacs", "ms")]

    def add(rule: str, budget: float | None, get: Callable[[Trial], dict], key: str) -> None:
        values = [get(one)[key] for one in found]
        costs = get(mean)
        accuracy = statistics.mean(values)
        rows.append((rule, budget, accuracy, spread(values), costs["gmacs"], costs.get("ms")))

    for count, row in mean["fixed"].items():
        for kind in ("raw", "calibrated"):
            if kind in row:
                add(f"{count} frames, {kind}", None, lambda t, n=count: t["fixed"][n], kind)
    for rule in ("stops_when_right", "least_cost"):
        add(f"oracle {rule}", None, lambda t, rule=rule: t["oracles"][rule], "accuracy")
    add("cascade, chosen", None, lambda t: t["cascade"], "accuracy")
    for n, row in enumerate(mean["budgets"]):
        for rule in ("fixed", "cascade"):
            add(
                f"{rule}, within the budget",
                row["budget"],
                lambda t, n=n, rule=rule: t["budgets"][n][rule],
                "accuracy",
            )
    for n, row in enumerate(mean["curve"]):
        add("cascade, curve", row["budget"], lambda t, n=n: t["curve"][n], "accuracy")
    return rows


def _figure(mean: Trial, path: Path) -> None:
    """Accuracy against the mean cost of a video, and against its latency if it is known."""
    costs = {"gmacs": "multiply-accumulates per video, mean (G)"}
    if "ms" in mean["cascade"]:
        costs["ms"] = "time of the network per video, mean (ms)"
    figure = new_figure(7.2 if len(costs) == 1 else 11.0, 4.4)
    panels = figure.subplots(1, len(costs), squeeze=False)[0]
    for axes, (cost, label) in zip(panels, costs.items(), strict=True):
        _draw(axes, mean, cost)
        axes.set_xlabel(label)
        axes.set_ylabel("top-1 accuracy (%)")
        tidy(axes)
    add_legend(figure, *panels[0].get_legend_handles_labels())
    note = "cascades: sum of all stages that ran; fitted and tested on different videos"
    figure.supxlabel(note, fontsize=8.5, color=GRAY)
    write_figure(figure, path)


def _draw(axes: Axes, mean: Trial, cost: str) -> None:
    """Everything that is compared, against a cost; joined by lines where the cost grows evenly."""
    joined = "-" if cost == "gmacs" else "none"
    fixed = list(mean["fixed"].values())
    calibrated = [row for row in fixed if "calibrated" in row]
    least = min(row["gmacs"] for row in calibrated)
    shown = [row for row in fixed if row["gmacs"] >= least]

    def line(rows: Sequence[dict], key: str, label: str, color: str, marker: str, style: str):
        axes.plot(
            [row[cost] for row in rows],
            [row[key] for row in rows],
            label=label,
            color=color,
            marker=marker,
            linestyle=style,
            linewidth=1.8,
            markersize=6,
            markerfacecolor="white" if marker == "o" else color,
        )

    line(shown, "raw", "single count", COLORS[0], "o", joined)
    line(calibrated, "calibrated", "single count, calibrated", COLORS[5], "s", "none")
    dots = "" if joined == "-" else "."
    line(mean["curve"], "accuracy", "cascades within a budget", COLORS[1], dots, joined)
    line([mean["cascade"]], "accuracy", "chosen cascade", COLORS[1], "D", "none")
    for rule, name, marker in (
        ("stops_when_right", "oracle: until it is right", "^"),
        ("least_cost", "oracle: least cost, accuracy of the largest count", "v"),
    ):
        line([mean["oracles"][rule]], "accuracy", name, COLORS[2], marker, "none")
