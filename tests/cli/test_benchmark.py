from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ffn.benchmarks.timing import Variant, compare, in_sequence, interleave, peak_memory
from ffn.cli import reading
from ffn.cli.benchmark import main
from ffn.datasets.synthetic import generate

CPU = torch.device("cpu")
TINY = ["--model", "tsm_tiny", "--num-classes", "3", "--batch-size", "2", "--device", "cpu"]


def measure(output: Path, *arguments: str) -> dict[str, Any]:
    """What the command writes."""
    assert main([*arguments, "--output", str(output)]) == 0
    return json.loads(output.read_text())


def names(comparison: dict[str, Any]) -> list[str]:
    return [variant["name"] for variant in comparison["variants"]]


def peaks(comparison: dict[str, Any]) -> dict[str, int]:
    return {variant["name"]: variant["peak_bytes"] for variant in comparison["variants"]}


def test_training_compares_views_together_in_sequence_and_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *TINY, "--frames", "8", "4", "--size", "48", "--rounds", "3"]

    written = measure(tmp_path / "new" / "train.json", *arguments)

    (comparison,) = written["comparisons"]
    flexible = ["together", "sequential", "together, recomputed", "sequential, recomputed"]
    assert names(comparison) == [*flexible, "plain 4", "plain 8", "plain 4 + 8"]
    seconds = [variant["seconds"] for variant in comparison["variants"]]
    assert all(len(rounds) == 3 for rounds in seconds)
    assert seconds[6] == pytest.approx([a + b for a, b in zip(seconds[4], seconds[5], strict=True)])
    pairs = [(ratio["name"], ratio["over"]) for ratio in comparison["ratios"]]
    assert pairs[:3] == [(name, "together") for name in flexible[1:]]
    first = comparison["ratios"][0]
    by_hand = [b / a for a, b in zip(seconds[1], seconds[0], strict=True)]
    assert first["speed"] == pytest.approx(statistics.median(by_hand))
    assert written["options"]["frames"] == [8, 4]
    assert written["measured"]["threads"] == torch.get_num_threads()
    assert written["measured"]["torch"] == torch.__version__
    screen = capsys.readouterr().out
    assert "together : plain 4 + 8" in screen
    assert f"torch: {torch.__version__}" in screen


def test_training_on_a_cpu_takes_two_videos_unless_told(tmp_path: Path) -> None:
    small = ["--model", "tsm_tiny", "--device", "cpu", "--size", "32", "--frames", "2", "4"]

    written = measure(tmp_path / "train.json", "train", *small, "--rounds", "1")

    assert written["options"]["batch_size"] == 2


def test_views_in_sequence_hold_the_activations_of_one_view(tmp_path: Path) -> None:
    """Activations dominate here: 7 + 8 frames together, at most 8 in sequence."""
    arguments = ["train", *TINY, "--frames", "7", "8", "--size", "64", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments)["comparisons"]

    peak = peaks(comparison)
    assert peak["together"] > 1.5 * peak["sequential"]
    assert peak["sequential"] < 1.5 * peak["plain 8"]
    assert comparison["ratios"][0]["memory"] == peak["sequential"] / peak["together"]


def test_recomputed_blocks_hold_less(tmp_path: Path) -> None:
    """Kept are the blocks' inputs, and what is inside one block at a time."""
    arguments = ["train", *TINY, "--frames", "7", "8", "--size", "64", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments)["comparisons"]

    peak = peaks(comparison)
    assert peak["together, recomputed"] < 0.7 * peak["together"]
    assert peak["sequential, recomputed"] < 0.8 * peak["sequential"]


@pytest.mark.slow
def test_compiled_training_is_compared_too(tmp_path: Path) -> None:
    arguments = ["train", *TINY, "--frames", "2", "4", "--size", "32", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments, "--compile")["comparisons"]

    assert names(comparison)[4:6] == ["together, compiled", "sequential, compiled"]
    assert ("sequential, compiled", "together") in [
        (ratio["name"], ratio["over"]) for ratio in comparison["ratios"]
    ]


def test_inference_compares_flexible_extracted_and_plain_at_each_frame_count(
    tmp_path: Path,
) -> None:
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "2", "--precision", "bf16"]
    arguments += ["--trained-frames", "2", "8", "--frames", "6", "3"]

    written = measure(tmp_path / "infer.json", *arguments)

    assert [c["title"].split(", ")[1] for c in written["comparisons"]] == [
        "3 frames on sub-network 2",
        "6 frames on sub-network 8",
    ]
    for comparison in written["comparisons"]:
        assert names(comparison) == ["flexible", "extracted", "plain"]
        assert peaks(comparison)["flexible"] > peaks(comparison)["extracted"]  # other counts' norms
        assert [(r["name"], r["over"]) for r in comparison["ratios"]] == [
            ("flexible", "extracted"),
            ("flexible", "plain"),
            ("extracted", "plain"),
        ]


FILMS = ["--videos", "2", "--rounds", "1", "--film-frames", "10", "--gop", "4"]


def test_data_is_measured_on_generated_films_of_each_size(tmp_path: Path) -> None:
    arguments = ["data", "--size", "28", "56", *FILMS, "--workers", "1"]

    written = measure(tmp_path / "data.json", *arguments, "--frames", "2", "4")

    comparisons = written["comparisons"]
    titles = [c["title"].split(";")[0] for c in comparisons]
    for size, part in (("28", titles[:4]), ("56", titles[4:])):
        assert part == [
            f"views 2, 4 of {size} px from 2 videos, mp4, GOP 4",
            "4 frames of 2 videos, frames alone",
            "4 frames of 2 videos, whole samples",
            "views 2, 4 of 2 videos through 1 workers",
        ]
    forms = ["mp4, GOP 4", "JPEG files", "store, JPEG", "store, raw"]
    assert [names(comparison) for comparison in comparisons[:4]] == [
        ["one decode", "one decode, nested", "a decode per view"],
        [*forms, "memory copy"],
        [*forms, "JPEG files, PIL"],
        forms,
    ]
    assert all(ratio["memory"] is None for c in comparisons for ratio in c["ratios"])
    sizes = comparisons[1]["title"].split("MiB per video: ")[1]
    raw = float(sizes.rsplit(" ", 1)[1])
    assert raw == pytest.approx(10 * 32 * 42 * 3 / 2**20, rel=0.05)  # 10 frames of 32 x 42


def test_given_videos_are_opened_once_for_all_views_or_once_per_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = generate(tmp_path / "films", train_per_class=1, val_per_class=1, size=32, frames=8)
    opened: list[str] = []
    dataset = reading._dataset

    def counting(form, *args, **kwargs):
        def open_counted(record):
            opened.append(record.path)
            return form.open(record)

        return dataset(replace(form, open=open_counted), *args, **kwargs)

    monkeypatch.setattr(reading, "_dataset", counting)
    monkeypatch.setattr(reading, "_compare_forms", lambda *args: [])
    arguments = ["--annotations", str(root / "val.csv"), "--root", str(root), "--size", "28"]
    arguments += ["--workers", "--rounds", "2", "--videos", "3"]

    written = measure(tmp_path / "data.json", "data", *arguments)

    # Three videos, a warm-up and two rounds; opened 1 + 1 + 3 times for three views.
    assert len(opened) == 3 * 3 * (1 + 1 + 3)
    assert len(set(opened)) == 3
    assert written["options"]["annotations"] == str(root / "val.csv")


def test_a_file_that_is_there_is_kept_unless_it_may_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "infer.json"
    output.write_text("mine")
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "1", "--frames", "2"]

    assert main([*arguments, "--output", str(output)]) == 2

    assert output.read_text() == "mine"
    assert f"{output} exists; name another file or add --overwrite" in capsys.readouterr().err
    assert measure(output, *arguments, "--overwrite")["format"] == 1
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--model", "tsm_tinny"], 'no model "tsm_tinny"; did you mean tsm_tiny'),
        (["train", *TINY, "--frames", "8"], "--frames is 8; give two or more counts"),
        (["infer", *TINY, "--device", "tpu"], "--device is 'tpu'; allowed: cpu, cuda"),
        (["infer", *TINY, "--device", "cuda:99"], "no cuda:99 here"),
        (["data", "--root", "films"], "--root films needs --annotations"),
        (["data", "--annotations", "none.csv"], "annotations none.csv do not exist"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("benchmark.py: ")
    assert message in error


def test_zero_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["infer", "--rounds", "0"])
    with pytest.raises(ValueError, match="rounds is 0; expected at least 1"):
        interleave({}, rounds=0, device=CPU)

    assert "'0' is not a number from 1 up" in capsys.readouterr().err


def test_calls_are_interleaved_and_warm_up_does_not_count() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}

    seconds = interleave(calls, rounds=3, warmup=1, device=CPU)

    assert "".join(order) == "abc" * 4
    assert [len(seconds[name]) for name in "abc"] == [3, 3, 3]


def test_ratios_are_formed_round_by_round() -> None:
    """A machine four times as slow in the last round changes no ratio."""
    fast = Variant("fast", 4, (1.0, 1.0, 2.0, 4.0), peak_bytes=300)
    slow = Variant("slow", 4, (2.0, 3.0, 4.0, 8.0), peak_bytes=200)

    (ratio,) = compare("", [fast, slow], [("fast", "slow")]).ratios

    assert (ratio.low, ratio.speed, ratio.high) == (2.0, 2.0, 2.25)
    assert ratio.memory == 1.5
    assert fast.rate == 4 / 1.5
    both = in_sequence("both", [fast, slow])
    assert both == Variant("both", 4, (3.0, 4.0, 6.0, 12.0), peak_bytes=300)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_peak_memory_counts_what_is_held_at_a_time(device: str) -> None:
    block, held = 1 << 20, torch.ones(1 << 18, device=device)  # a MiB each

    def call() -> torch.Tensor:
        a = torch.empty(2 * block, dtype=torch.uint8, device=device)
        b = torch.empty(3 * block, dtype=torch.uint8, device=device)
        del a
        c = torch.empty(block, dtype=torch.uint8, device=device)
        del b
        return c + held[0].to(torch.uint8)  # a few bytes, and a block

    peak = peak_memory(call, torch.device(device))

    assert 5 * block <= peak < 5 * block + 4096
    assert peak_memory(call, torch.device(device)) == peak


def test_memory_of_other_devices_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="memory of device meta cannot be measured"):
        peak_memory(lambda: None, torch.device("meta"))
