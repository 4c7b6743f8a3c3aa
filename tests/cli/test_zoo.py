"""The zoo's tables and page, and the commands that fetch and verify weights."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from ffn.cli import main
from ffn.cli.zoo_page import HEAD, MODELS, models_table, weights_table
from ffn.zoo import find_record, list_models, list_weights

FOLDER = Path(__file__).parents[2] / "model_zoo"
SHIPPED = "tsm_tiny.motion_f4_8_16"


def test_the_page_names_all_weights_and_models() -> None:
    """`ffn zoo table` prints it."""
    written = (FOLDER / "README.md").read_text()
    assert written.startswith(HEAD)
    assert MODELS in written
    names = re.findall(r"^\| `([^`]+)` \|", written, re.MULTILINE)
    assert names == [*list_weights(), *list_models()]
    line = next(line for line in written.splitlines() if f"`{SHIPPED}`" in line)
    assert weights_table([SHIPPED], with_cost=True).splitlines()[2] == line
    for name in ("tsm_r18", "uniformer_tiny"):
        assert models_table([name]).splitlines()[2] in written


def test_a_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list", "tsm_r50.sthv1_*"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 4
    assert "| `tsm_r50.sthv1_f4_8_16` | 174 hand actions" in printed
    assert main(["zoo", "list", "tsm_r50.sthv1_f4_8"]) == 2
    assert "tsm_r50.sthv1_f4_8_16" in capsys.readouterr().err
    assert all(find_record(name).knows for name in list_weights())


def test_models_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "models", "tsm_r50", "--frames", "4", "8"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert head == "| model | parameters | flexible | 4 frames | 8 frames |"
    assert line == "| `tsm_r50` | 23.86 M | +0.61 % | 16.35 | 32.70 |"  # as test_complexity.py
    for given, named in (
        ("tsm_r5", "tsm_r50"),
        ("uniformer_tiny --side 220", "multiples of 8"),
        ("own --imports no_such_package", "no_such_package"),
    ):
        assert main(["zoo", "models", *given.split()]) == 2
        assert named in capsys.readouterr().err


def test_fetch_prints_path_size_and_hash_and_tries_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["zoo", "fetch", "tsm_tiny.motion_f4*", SHIPPED]) == 0
    path = FOLDER / f"weights/{SHIPPED}.safetensors"
    digits = hashlib.sha256(path.read_bytes()).hexdigest()
    line = f"{SHIPPED}: {path}, 1,295,392 bytes, sha256 {digits}\n"
    assert capsys.readouterr() == (line, "")

    monkeypatch.setenv("FFN_HOME", str(tmp_path))
    monkeypatch.setenv("FFN_OFFLINE", "1")
    names = ["tsm_tiny.motio", "tsm_r50.k400_f16", "hf://me/net"]
    assert main(["zoo", "fetch", *names, SHIPPED]) == 1
    printed, errors = capsys.readouterr()
    assert printed == line
    assert errors.splitlines()[-1] == f"ffn zoo: not fetched: {', '.join(names)}"
