from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ffn.cli.summarise import main
from ffn.evaluation import Row, Sweep, save_table


def sweep(name: str, top1: dict[int, float]) -> Sweep:
    rows = tuple(
        Row(
            frames=frames,
            subnet=None,
            top1=value,
            top5=100.0,
            mean_class=value,
            gmacs=0.1 * frames,
            params=10,
            latency_ms=None,
            videos=50,
            failed=0,
        )
        for frames, value in top1.items()
    )
    measured = {"date": "today", "device": "cpu", "precision": "fp32", "versions": {}}
    return Sweep(name, (4,), 10, (32, 32), rows, (), measured)


def test_seeds_are_averaged_per_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweeps = [
        sweep("plain.s0/last", {4: 50.0, 8: 30.0}),
        sweep("plain.s1/last", {4: 54.0, 8: 33.0}),
        sweep("other.s0/last", {4: 10.0, 8: 20.0}),
    ]
    save_table(sweeps, tmp_path)

    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "mean")]) == 0

    content = json.loads((tmp_path / "mean.json").read_text())
    first, second = content["runs"]["plain"]["rows"]
    assert (first["top1_mean"], second["top1_mean"]) == (52.0, 31.5)
    assert first["top1_std"] == pytest.approx(8**0.5, abs=0.01)  # (-2)² + 2² over n - 1 = 1
    assert content["runs"]["other"]["rows"][0]["top1_std"] is None
    table = (tmp_path / "mean.md").read_text()
    assert "| plain | 2 | **52.0 ± 2.8** | 31.5 ± 2.1 |" in table
    assert "| other | 1 | **10.0** | 20.0 |" in table
    assert "mean ± standard deviation over seeds; bold" in table
    assert table in capsys.readouterr().out
    assert (tmp_path / "mean.png").stat().st_size > 1000


def test_an_earlier_summary_adds_its_seeds(tmp_path: Path) -> None:
    tops = [{4: 50.0, 8: 30.0}, {4: 54.0, 8: 34.0}, {4: 52.0, 8: 29.0}]
    sweeps = [sweep(f"plain_4.s{seed}/last", top1) for seed, top1 in enumerate(tops)]
    written = {}
    for name, several in {"two": sweeps[:2], "third": sweeps[2:], "all": sweeps}.items():
        save_table(several, tmp_path / name)
        written[name] = str(tmp_path / name / "results.json")
    output = {name: str(tmp_path / f"mean_{name}") for name in ("two", "joined", "all")}

    separate = ["--separate", "plain_*"]
    assert main([written["two"], "--output", output["two"], *separate]) == 0
    two = f"{output['two']}.json"
    assert main([written["third"], two, "--output", output["joined"], *separate]) == 0
    assert main([written["all"], "--output", output["all"], *separate]) == 0

    joined, whole = (
        json.loads(Path(f"{output[name]}.json").read_text())["runs"]["plain_4"]
        for name in ("joined", "all")
    )
    assert (joined["seed_numbers"], whole["seed_numbers"]) == ([2, 0, 1], [0, 1, 2])
    for row, expected in zip(joined["rows"], whole["rows"], strict=True):
        assert row.pop("top1") == [expected["top1"][place] for place in (2, 0, 1)]
        expected.pop("top1")
        assert row == expected
    assert Path(f"{output['joined']}.md").read_text() == Path(f"{output['all']}.md").read_text()


def test_a_mean_is_rounded_once(tmp_path: Path) -> None:
    """57.9475 is 57.95 with two decimals, which one decimal would show as 58.0."""
    rows = [replace(sweep(f"a.s{i}/last", {4: top1})) for i, top1 in enumerate((57.9, 57.995))]
    rows = [replace(one, rows=(replace(one.rows[0], videos=10**6),)) for one in rows]
    save_table(rows, tmp_path)
    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "mean")]) == 0
    (row,) = json.loads((tmp_path / "mean.json").read_text())["runs"]["a"]["rows"]
    assert (row["top1_mean"], row["top1"]) == (57.9475, [57.9, 57.995])
    assert "| a | 2 | **57.9 ± 0.1** |" in (tmp_path / "mean.md").read_text()


def test_a_summary_of_version_0_2_is_joined(tmp_path: Path) -> None:
    """It has two decimals, and no file of the weights."""
    save_table([sweep("a.s0/last", {4: 50.0})], tmp_path)
    old, results = tmp_path / "old.json", str(tmp_path / "results.json")
    assert main([results, "--output", str(tmp_path / "old")]) == 0
    content = json.loads(old.read_text())
    del content["runs"]["a"]["weights"]
    old.write_text(json.dumps(content))
    save_table([sweep("a.s1/best", {4: 54.0})], tmp_path)

    assert main([results, str(old), "--output", str(tmp_path / "both")]) == 0
    run = json.loads((tmp_path / "both.json").read_text())["runs"]["a"]
    assert (run["rows"][0]["top1_mean"], run["seed_numbers"], run["weights"]) == (
        52,
        [1, 0],
        "best",
    )


@pytest.mark.parametrize("by_summary", [False, True])
def test_best_and_last_weights_are_not_averaged(
    by_summary: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name / "results.json" for name in ("one", "two")]
    for seed, (path, end) in enumerate(zip(files, ("best", "last"), strict=True)):
        save_table([sweep(f"a.s{seed}/{end}", {4: 50.0})], path.parent)
    if by_summary:
        assert main([str(files[0]), "--output", str(tmp_path / "sum")]) == 0
        files[0] = tmp_path / "sum.json"
    assert main([*map(str, files), "--output", str(tmp_path / "mean")]) == 2
    error = capsys.readouterr().err
    assert "the seeds of a have different weights, a.s0/best and a.s1/last; give the" in error


def test_a_seed_of_an_earlier_summary_is_not_counted_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table([sweep("plain.s1/last", {4: 50.0})], tmp_path)
    results, stem = str(tmp_path / "results.json"), str(tmp_path / "one")
    assert main([results, "--output", stem]) == 0
    assert main([results, f"{stem}.json", "--output", str(tmp_path / "two")]) == 2
    assert "seed 1 of plain occurs twice" in capsys.readouterr().err


def test_what_is_read_is_never_overwritten(tmp_path: Path, capsys) -> None:
    save_table([sweep("plain.s0/last", {4: 50.0})], tmp_path, "seeds")
    path = tmp_path / "seeds.json"
    before = path.read_bytes()
    assert main([str(path), "--output", str(tmp_path / "seeds"), "--overwrite"]) == 2
    assert f"{path} is what the command reads; choose another" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", ['{"format": 7, "runs": {}}', '{"format": 1, "runs": {"a": 1}}']
)
def test_a_damaged_summary(content: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "old.json").write_text(content)
    assert main([str(tmp_path / "old.json"), "--output", str(tmp_path / "new")]) == 2
    assert "old.json" in capsys.readouterr().err


def test_seeds_of_different_protocols_are_not_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (sweep(f"plain.s{i}/last", {4: 50.0}) for i in range(2))
    save_table([one, replace(other, protocol="1x3")], tmp_path)
    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "mean")]) == 2
    assert "seeds of plain have different protocols" in capsys.readouterr().err


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    save_table([sweep("plain.s0/last", {4: 50.0})], tmp_path)
    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "one")]) == 0
    table = (tmp_path / "one.md").read_text()
    assert "(%), one seed; bold" in table
    assert "±" not in table


def test_differences_from_a_run_of_the_same_counts(tmp_path: Path) -> None:
    sweeps = [
        sweep("base.s0/last", {4: 50.0, 8: 30.0}),
        sweep("other.s0/last", {4: 47.9, 8: 33.0}),
        replace(sweep("elsewhere.s0/last", {4: 1.0, 8: 2.0}), trained_frames=(8,)),
    ]
    save_table(sweeps, tmp_path)
    command = [str(tmp_path / "results.json"), "--output", str(tmp_path / "x"), "--against", "base"]
    assert main(command) == 0
    lines = (tmp_path / "x.md").read_text().splitlines()
    at = lines.index("Difference from `base` at the trained counts, in points.")
    assert lines[at + 2 :] == ["| run | 4 |", "|---|---|", "| other | -2.1 |"]


def at(name: str, trained: tuple[int, ...], top1: dict[int, float]) -> Sweep:
    return replace(sweep(name, top1), trained_frames=trained)


def test_separate_networks_answer_at_their_own_count(tmp_path: Path) -> None:
    sweeps = [
        at("any.s0/last", (4, 8), {4: 50.0, 6: 55.0, 8: 60.0}),
        at("plain_8.s0/last", (8,), {4: 1.0, 6: 2.0, 8: 61.0}),
        at("plain_4.s0/last", (4,), {4: 51.0, 6: 3.0, 8: 4.0}),
        at("plain_8.s1/last", (8,), {4: 1.0, 6: 2.0, 8: 63.0}),
        at("plain_4.s1/last", (4,), {4: 53.0, 6: 3.0, 8: 4.0}),
    ]
    save_table(sweeps, tmp_path)
    command = [str(tmp_path / "results.json"), "--output", str(tmp_path / "x")]

    assert main([*command, "--separate", "plain_*"]) == 0

    table = (tmp_path / "x.md").read_text()
    assert "| separate networks | 2 | **52.0 ± 1.4** |  | **62.0 ± 1.4** |" in table
    assert "| plain_4 | 2 |" in table


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "need the same number of seeds; plain_* has no run"),
        ([at("plain_a.s0/x", (4, 8), {4: 1.0, 8: 2.0})], "plain_a is trained at [4, 8]"),
        ([at(f"plain_{i}.s0/x", (4,), {4: 1.0}) for i in "ab"], "plain_b is trained at [4]"),
        ([at("plain_8.s0/x", (8,), {4: 1.0})], "plain_* is not tested at its trained count"),
        (
            [at(f"plain_{t}.s{i}/x", (t,), {t: 1.0}) for t, i in ((4, 0), (8, 0), (8, 1))],
            "plain_* has {'plain_4': 1, 'plain_8': 2}",
        ),
    ],
)
def test_separate_networks_that_cannot_be_joined_are_refused(
    others: list[Sweep], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table([sweep("any.s0/last", {4: 50.0}), *others], tmp_path)
    command = [str(tmp_path / "results.json"), "--output", str(tmp_path / "x")]
    assert main([*command, "--separate", "plain_*"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "message"),
    [(["plain/last"], "'plain/last' has no seed"), (["a.s0/last"], "no run 'b'; the runs are a")],
)
def test_runs_that_cannot_be_averaged_are_refused(
    names: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table([sweep(name, {4: 1.0}) for name in names], tmp_path)

    results = str(tmp_path / "results.json")
    assert main([results, "--output", str(tmp_path / "mean"), "--figure", "b"]) == 2

    assert message in capsys.readouterr().err
    assert not (tmp_path / "mean.json").exists()


def test_seeds_tested_at_other_frames_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table([sweep("a.s0", {4: 1.0}), sweep("a.s1", {8: 1.0})], tmp_path)

    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "mean")]) == 2

    assert "the seeds of a have different frame counts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"trained_frames": (8,)}, "the seeds of a have different trained counts"),
        ({"name": "a.s0/best"}, "seed 0 of a occurs twice, as a.s0/last and a.s0/best"),
    ],
)
def test_seeds_that_are_not_comparable_are_refused(
    changed: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = replace(sweep("a.s1/last", {4: 1.0}), **changed)
    save_table([sweep("a.s0/last", {4: 1.0}), other], tmp_path)

    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "mean")]) == 2

    assert message in capsys.readouterr().err
    assert not (tmp_path / "mean.json").exists()


@pytest.mark.parametrize("trained", [None, (4, 16)])
def test_a_difference_needs_tests_at_the_trained_counts(
    trained: tuple[int, ...] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table([replace(sweep("a.s0", {4: 1.0}), trained_frames=trained)], tmp_path)
    command = [str(tmp_path / "results.json"), "--output", str(tmp_path / "x"), "--against", "a"]

    assert main(command) == 2

    assert "a difference needs tests at the trained counts" in capsys.readouterr().err


def test_the_name_of_the_output_may_contain_a_dot(tmp_path: Path) -> None:
    save_table([sweep("a.s0", {4: 1.0})], tmp_path)

    assert main([str(tmp_path / "results.json"), "--output", str(tmp_path / "new" / "v0.2")]) == 0

    written = sorted(file.name for file in (tmp_path / "new").iterdir())
    assert written == ["v0.2.json", "v0.2.md", "v0.2.png"]


def test_a_missing_file_takes_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json"), "--output", str(tmp_path / "x")]) == 2

    error = capsys.readouterr().err
    assert error.startswith("summarise.py: ")
    assert "none.json" in error
