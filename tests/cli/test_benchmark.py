"""``ffn benchmark`` on tiny networks: the variants, and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ffn.cli import main

TINY = ["--model", "tsm_tiny", "--num-classes", "3", "--batch-size", "2", "--device", "cpu"]


def measure(output: Path, *arguments: str) -> list[dict[str, Any]]:
    """The comparisons in the file that the command writes, and their variants by name."""
    assert main(["benchmark", *arguments, "--output", str(output)]) == 0
    comparisons = json.loads(output.read_text())["comparisons"]
    return [{v["name"]: v for v in comparison["variants"]} for comparison in comparisons]


@pytest.mark.slow
def test_training_compares_views_together_in_sequence_and_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Activations dominate: 7 + 8 frames together, at most 8 in sequence."""
    file = tmp_path / "new" / "train.json"
    arguments = ["train", *TINY, "--frames", "8", "7", "--size", "64", "--rounds", "1"]

    (variants,) = measure(file, *arguments)

    assert {"together", "sequential", "plain 8", "plain 7 + 8"} < variants.keys()
    peak = {name: variant["peak_bytes"] for name, variant in variants.items()}
    assert peak["together"] > 1.5 * peak["sequential"]
    assert peak["sequential"] < 1.5 * peak["plain 8"]
    assert peak["together, checkpointed"] < 0.7 * peak["together"]
    assert "relative to plain 7 + 8" in capsys.readouterr().out

    assert main(["benchmark", *arguments, "--output", str(file)]) == 2  # the file exists


@pytest.mark.slow
def test_inference_compares_runtimes(tmp_path: Path) -> None:
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "2", "--trained-frames", "2", "8"]

    (variants,) = measure(tmp_path / "infer.json", *arguments, "--frames", "6")

    runtimes = {name.partition(",")[0] for name in variants}
    assert runtimes == {"unfused", "torch", "onnxruntime", "openvino"}
    for name, variant in variants.items():
        assert len(variant["seconds"]) == 2
        in_torch = name.startswith(("unfused", "torch"))
        assert (variant["peak_bytes"] or 0) > 0 if in_torch else variant["peak_bytes"] is None


def test_reading_compares_decodes(tmp_path: Path, write_video: Any) -> None:
    for name in ("a/0", "a/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / f"{name}.mp4")
    file = tmp_path / "data.json"

    (decodes,) = measure(
        file, "data", "--annotations", str(tmp_path), "--frames", "2", "4", "--size", "28",
        "--rounds", "1",
    )  # fmt: skip

    assert [*decodes] == ["one decode", "one decode, nested", "a decode per view"]
