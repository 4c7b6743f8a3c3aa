"""The benchmark of two source trees runs the ffn of each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ffn.benchmarks.versions import NOW
from ffn.cli.benchmark import main
from ffn.devices import has_bf16

TINY = ["versions", "--model", "tsm_tiny", "--num-classes", "3", "--size", "32", "--rounds", "2"]
TINY += ["--device", "cpu", "--trained-frames", "2", "4"]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A copy of the source tree, which is no checkout of git."""
    tree = tmp_path / "before"
    shutil.copytree(NOW / "ffn", tree / "ffn", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.mark.slow
def test_a_slower_tree_is_slower_and_needs_more_memory(before: Path, tmp_path: Path) -> None:
    step = before / "ffn" / "engine" / "train_step.py"
    text = step.read_text()
    slow = "import time\n\nHELD = b'x' * 2**30\ntime_per_step = time.sleep\n"
    text = text.replace("\nimport torch\n", f"\nimport torch\n{slow}", 1)
    head = "    def step("
    body = text.index('"""', text.index('"""', text.index(head)) + 3) + 3
    step.write_text(text[:body] + "\n        time_per_step(0.5)" + text[body:])
    output = tmp_path / "versions.json"

    assert main([*TINY, "--before", str(before), "--output", str(output)]) == 0

    written = json.loads(output.read_text())
    (comparison,) = written["comparisons"]
    old, new = comparison["variants"]
    assert (old["name"], new["name"]) == ("before", "now")
    assert min(old["seconds"]) > 0.5
    assert old["peak_bytes"] - new["peak_bytes"] > 0.6 * 2**30
    (ratio,) = comparison["ratios"]
    by_hand = [b / a for a, b in zip(new["seconds"], old["seconds"], strict=True)]
    assert ratio["low"] <= sum(by_hand) / 2 <= ratio["high"]
    assert written["measured"]["before"] == "unknown"
    assert "before" not in written["options"]  # a path of this machine
    assert "batches of 1 at 32 px: now | before |" in output.with_suffix(".md").read_text()


@pytest.mark.slow
def test_forward_passes_as_trained_and_fused(before: Path, tmp_path: Path) -> None:
    output = tmp_path / "versions.json"

    command = [*TINY, "--before", str(before), "--frames", "3", "2", "--output", str(output)]
    assert main(command) == 0

    first, second = json.loads(output.read_text())["comparisons"]
    assert "forward pass, 2 frames" in first["title"]
    assert "forward pass, 3 frames" in second["title"]
    forms = ["as trained", "fused", "fused, packed", "fused, bf16", "fused, bf16, packed"]
    forms = [form for form in forms if has_bf16() or "bf16" not in form]
    names = ["before, as trained", *(f"now, {form}" for form in forms)]
    assert [variant["name"] for variant in first["variants"]] == names
    assert [ratio["over"] for ratio in first["ratios"]] == len(forms) * names[:1]


def test_the_error_of_a_tree_is_shown(before: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (before / "ffn" / "__init__.py").write_text("raise ImportError('an earlier fault')")

    assert main([*TINY, "--before", str(before)]) == 2

    assert "before: the process ended with ImportError: an earlier" in capsys.readouterr().err


def test_a_folder_without_ffn_and_the_same_tree_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--before", str(tmp_path)]) == 2
    assert "which has no folder ffn; name another source tree" in capsys.readouterr().err
    assert main([*TINY, "--before", str(NOW)]) == 2
    assert "the version that runs" in capsys.readouterr().err
