"""The tables in docs/ agree with the measurements in model_zoo/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def ratios(file: str, part: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Ratios of the comparison with `part` in its title, by (variant, reference)."""
    content = json.loads((ROOT / "model_zoo/results" / file).read_text())
    (found,) = (c for c in content["comparisons"] if part in c["title"])
    return {(ratio["name"], ratio["over"]): ratio for ratio in found["ratios"]}


def speeds(part: str) -> dict[tuple[str, str], float]:
    return {pair: ratio["speed"] for pair, ratio in ratios("reading.json", part).items()}


def cells(name: str, label: str) -> list[str]:
    """The cells of a table row with the given label in the first column."""
    lines = (ROOT / "docs" / name).read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize(
    ("label", "source"),
    [
        ("mp4, a key frame every 12", "mp4, GOP 12"),
        ("mp4, a key frame every 250", "mp4, GOP 250"),
        ("a folder of the same JPEGs, through Pillow", "JPEG files"),
        (
            "the same, cropped by Pillow in float as TSM's and FFN's repositories do",
            "JPEG files, PIL",
        ),
        ("store, `raw`", "store, raw"),
        ("copy in memory", "memory copy"),
    ],
)
def test_costs_of_the_formats(label: str, source: str) -> None:
    shown = cells("clip_store.md", label)
    for cell, part in zip(shown, ("frames alone", "whole samples"), strict=False):
        measured = speeds(part).get(("store, JPEG", source))
        assert cell == ("" if measured is None else f"{measured:.2f}")


@pytest.mark.parametrize("gop", ["12", "250"])
def test_costs_of_views(gop: str) -> None:
    found: dict[Any, float] = speeds(f"mp4, GOP {gop};")
    each = "a decode per view"
    expected = [f"{1 / found[way, each]:.2f}" for way in ("one decode", "one decode, nested")]
    assert cells("decoding.md", f"{gop} frames") == expected


def traffic(title: str) -> dict[str, str]:
    """Requests and MiB of each variant, from the title of a comparison."""
    parts = title.split("requests, MiB: ")[1].split("; ")
    return dict(re.split(r" (?=\d)", part, maxsplit=1) for part in parts)


@pytest.mark.parametrize(
    ("label", "start", "variants", "digits"),
    [
        *((str(n), f"{n} clips of 8 frames", ("ranges", "whole shards"), 1) for n in (1, 4, 16)),
        *(
            (str(n), f"8 frames at a distance of {n},", ("a request per frame", "one request"), 2)
            for n in (2, 3, 4, 8)
        ),
    ],
)
def test_ranges_of_a_remote_store(
    label: str, start: str, variants: tuple[str, str], digits: int
) -> None:
    content = json.loads((ROOT / "model_zoo/results/remote_store.json").read_text())
    (found,) = (c for c in content["comparisons"] if c["title"].startswith(start))
    (ratio,) = found["ratios"]
    shown = [traffic(found["title"])[name] for name in variants]
    row = [label, *shown, f"{ratio['speed']:.{digits}f}"]
    assert f"| {' | '.join(row)} |" in (ROOT / "docs/clip_store.md").read_text().splitlines()
    assert content["measured"]["date"][:10] in (ROOT / "docs/clip_store.md").read_text()


STEPS = (
    ("training_steps.json", "tsm_r18, views 4, 8, 16, batches of 2 at 224 px"),
    ("training_steps_tsm_r50.json", "tsm_r50, views 4, 8, 16, batches of 1 at 224 px"),
    ("training_steps_uniformer_s.json", "uniformer_s, views 4, 8, 16, batches of 2 at 112 px"),
)


@pytest.mark.parametrize(
    ("label", "variant"),
    [
        ("sequential", "sequential"),
        ("together, checkpointing", "together, recomputed"),
        ("sequential, checkpointing", "sequential, recomputed"),
        ("together, compiled", "together, compiled"),
        ("sequential, compiled", "sequential, compiled"),
    ],
)
def test_memory_and_time_of_a_step(label: str, variant: str) -> None:
    expected = []
    for file, title in STEPS:
        ratio = ratios(file, title).get((variant, "together"))
        expected += ["", ""] if ratio is None else [ratio["memory"], 1 / ratio["speed"]]
    shown = [value if value == "" else f"{value:.2f}" for value in expected]
    assert cells("training_memory.md", label) == shown


def test_views_in_sequence_save_a_third_of_the_memory_for_no_time() -> None:
    for file, title in STEPS[:2]:
        ratio = ratios(file, title)["sequential", "together"]
        assert ratio["memory"] <= 0.65
        assert ratio["speed"] >= 1 / 1.1


def test_the_table_of_cascades() -> None:
    """Its rows are those of the reports, which a tool has written."""
    names = ("cascade_motion.md", "cascade_motion_any_count.md")
    reports = [(ROOT / "model_zoo/results" / name).read_text() for name in names]
    # The page leaves out the column of milliseconds.
    reports = [re.sub(r"( \d+ % \|) [\d.]+ \|", r"\1", text).splitlines() for text in reports]
    text = (ROOT / "docs/cascade.md").read_text().splitlines()
    rows = [line for line in text if line.startswith("| ") and "%" in line and " frames" in line]
    rows += [line for line in text if line.startswith("| cascade |")]

    assert len(rows) >= 10
    assert {row for row in rows if "rule" not in row} <= {*reports[0], *reports[1]}


@pytest.mark.parametrize(
    ("label", "network"),
    [
        ("`own_motions.yaml`", "fixed_4_8_16"),
        ("the same, at any count from 2 to 20", "any_count"),
        ("16 frames alone", "plain_16"),
        ("8 frames alone", "plain_8"),
        ("4 frames alone", "plain_4"),
    ],
)
def test_the_table_of_own_motions(label: str, network: str) -> None:
    text = (ROOT / "docs/fine_tuning.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {label} |"))
    content = json.loads((ROOT / "model_zoo/results/own_motions_motion6.json").read_text())
    rows = {row["frames"]: row["top1"]["mean"] for row in content["networks"][network]["rows"]}
    shown = [float(cell) for cell in line.removeprefix(f"| {label} |").strip(" |").split("|")]

    assert shown == pytest.approx([rows[n] for n in (2, 4, 6, 8, 12, 16, 20)], abs=0.0501)


@pytest.mark.parametrize(
    ("label", "network"),
    [
        ("`own_clips.yaml`, at 4, 8 and 16 frames", "fixed_4_8_16"),
        ("the same at any count from 2 to 20", "any_count"),
        ("plain at 16 frames", "plain_16"),
        ("plain at 8 frames", "plain_8"),
        ("plain at 4 frames", "plain_4"),
    ],
)
def test_the_table_of_own_clips(label: str, network: str) -> None:
    text = (ROOT / "docs/fine_tuning.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {label} |"))
    content = json.loads((ROOT / "model_zoo/results/own_clips_reps6.json").read_text())
    rows = {row["frames"]: row for row in content["networks"][network]["rows"]}
    expected = [rows[n][key]["mean"] for n in (2, 4, 8, 16) for key in ("top1", "class_groups")]

    shown = [float(number) for number in re.findall(r"\d+\.\d", line.partition(f"{label} |")[2])]
    assert shown == pytest.approx(expected, abs=0.0501)
    for count in (4, 8, 16):  # the text says that these differences are within their intervals
        rows = content["differences"]["top1"].get(f"plain_{count}", [])
        (difference,) = (row for row in rows if row["frames"] == count)
        low, high = difference["interval"]
        assert low < 0 < high
        assert high - low > 19


def own_motions(stem: str) -> dict[str, dict[int, Any]]:
    """Rows of model_zoo/results/own_motions_<stem>.json, by network and number of frames."""
    content = json.loads((ROOT / f"model_zoo/results/own_motions_{stem}.json").read_text())
    return {
        name: {row["frames"]: row for row in network["rows"]}
        for name, network in content["networks"].items()
    }


def top1(rows: dict[int, Any], *counts: int) -> float:
    """The mean over numbers of frames."""
    return sum(rows[count]["top1"]["mean"] for count in counts) / len(counts)


def test_what_pages_say_of_own_motions() -> None:
    first, second = own_motions("motion6"), own_motions("motion6_seed_1")
    ours, plain = first["fixed_4_8_16"], first["plain_16"]
    tuning, any_count, readme = (
        " ".join((ROOT / name).read_text().split())
        for name in ("docs/fine_tuning.md", "docs/any_count.md", "README.md")
    )
    alone = [top1(ours, n) - top1(first[f"plain_{n}"], n) for n in (4, 8, 16)]
    assert "by {:+.1f}, {:.1f} and {:+.1f} points; the 95 %".format(*alone) in tuning
    gain = {n: f"{top1(ours, n) - top1(plain, n):.0f}" for n in (2, 4)}
    assert f"is {gain[4]} points above the network at 16 frames" in tuning
    assert f"and {gain[2]} if they see 2" in tuning
    shuffled = [row["top1_shuffled"]["mean"] for n, row in ours.items() if n > 1]
    assert f"it has {min(shuffled):.0f} to {max(shuffled):.0f} %" in tuning
    assert f"{top1(ours, 16):.0f} % on 345 real clips of six motions at 16 frames" in readme
    assert f"at 16 frames, {top1(ours, 4):.0f} % at 4" in readme

    gain = {n: f"{top1(first['any_count'], n) - top1(plain, n):.0f}" for n in (2, 4)}
    assert f"is {gain[4]} and {gain[2]} points above" in any_count
    most = [top1(of["fixed_4_8_16"], *range(3, 21)) for of in (first, second)]
    most_any = [top1(of["any_count"], *range(3, 21)) for of in (first, second)]
    more = [f"{ours - other:.1f}" for ours, other in zip(most, most_any, strict=True)]
    less = [
        f"{top1(of['any_count'], 2) - top1(of['fixed_4_8_16'], 2):.1f}" for of in (first, second)
    ]
    assert f"has {more[0]} points more in the mean with seed 0, and {more[1]} with" in tuning
    assert f"at 2 frames {less[0]} and {less[1]} points less" in tuning
    assert f"from 3 frames on, by {more[0]} and {more[1]} points in two seeds" in any_count
    fourth = second["fixed_2_4_8_16"]
    at_2 = top1(fourth, 2) - top1(second["any_count"], 2)
    others = most_any[1] - top1(fourth, *range(3, 21))
    assert f"it has {at_2:.1f} points more than any count at 2, and {others:.1f} less" in tuning


def test_what_the_page_says_of_the_direction_of_exercises() -> None:
    text = " ".join((ROOT / "docs/fine_tuning.md").read_text().split())
    first, second = (
        {
            name: (rows[16]["top1"]["mean"], rows[16]["class_groups"]["mean"])
            for name, rows in of.items()
        }
        for of in (own_motions("reps6"), own_motions("reps6_seed_1"))
    )
    ours, others = first["fixed_4_8_16"], second["any_count"]
    assert f"({ours[0]:.0f} % at 16 frames)" in text
    assert f"right in {ours[1]:.1f} % (separate network: {first['plain_16'][1]:.1f} %" in text
    assert f"Trained at any count, it is right in {first['any_count'][1]:.1f} %" in text
    assert f"in {others[1]:.1f} % in place of {second['fixed_4_8_16'][1]:.1f} %" in text


def test_what_the_page_says_of_cascades_in_time() -> None:
    text = " ".join((ROOT / "docs/cascade.md").read_text().split())
    for name, single, sentence in (
        ("cascade_motion_any_count", 12, "the cascade takes {cascade} ms of the network per video"),
        ("cascade_real_clips", 11, "the cascade takes {cascade} ms, and 11 frames have"),
    ):
        mean = json.loads((ROOT / f"model_zoo/results/{name}.json").read_text())["mean"]
        row = mean["fixed"][str(single)]
        assert sentence.format(cascade=f"{mean['cascade']['ms']:.2f}") in text
        assert f"{row['raw']:.1f} % in {row['ms']:.2f} ms" in text


@pytest.mark.parametrize(
    ("stem", "counts", "digits"),
    [("motion_precisions", (4, 8, 16), 2), ("own_motions_precisions", (2, 4, 8, 16), 1)],
)
def test_the_tables_of_precisions(stem: str, counts: tuple[int, ...], digits: int) -> None:
    text = (ROOT / "docs/inference.md").read_text()
    runs = json.loads((ROOT / f"model_zoo/results/{stem}.json").read_text())["runs"]
    for network in {name.partition("/")[2] for name in runs}:
        rows = [
            {row["frames"]: row["top1_mean"] for row in runs[f"{kind}/{network}"]["rows"]}
            for kind in ("fp32", "bf16", "int8")
        ]
        for count in counts:
            shown = " | ".join(f"{row[count]:.{digits}f}" for row in rows)
            assert f"| {count} | {shown} |" in text, network


def test_what_the_page_says_of_forms() -> None:
    text = " ".join((ROOT / "docs/any_count.md").read_text().split())
    content = json.loads((ROOT / "model_zoo/results/motion_any_count_forms.json").read_text())
    found = {
        name: {row["frames"]: row["top1_mean"] for row in run["rows"]}
        for name, run in content["runs"].items()
    }
    counts = (2, *range(4, 21, 2))
    mean = {n: sum(of[t] for t in counts) / 10 for n, of in found.items() if {*counts} <= {*of}}
    teacher, ours = found["any_count_teacher_20"], found["any_count"]

    less, more = ours[6] - teacher[6], teacher[24] - ours[24]
    expected = f"has {mean['any_count_teacher_20']:.1f} with the same number of frames per video"
    assert f"{expected}, in place of {mean['any_count']:.1f}: {less:.1f} less at 6" in text
    assert f"and {more:.1f} more at 24 frames" in text
    assert f"more often have {mean['any_count_center']:.1f} (`any_count_center`)" in text
    assert f"by one count have {mean['any_count_overlap']:.1f} (`any_count_overlap`)" in text
    rates = [mean[f"any_count_lr_{rate}"] for rate in ("4e-3", "1e-3")]
    assert f"Twice the rate of the config has {rates[0]:.1f}, half of it {rates[1]:.1f}" in text
    assert (
        f"Training in one part, without the plain network, has {mean['views3_sets7_one_part']:.1f}"
        in text
    )
