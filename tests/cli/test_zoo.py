"""The zoo's table and page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ffn.backbones.registry import _models
from ffn.cli.zoo import main, models_table, page, weights_table
from ffn.zoo import find_record, list_models, list_weights

FOLDER = Path(__file__).parents[2] / "model_zoo"


def test_the_page_is_what_the_tool_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = (FOLDER / "README.md").read_text()
    lines = re.findall(r"^\| `([^`.]+)` \| .+ M \|.+$", written, re.MULTILINE)
    assert lines == list_models()

    table = written[written.index("| model | parameters") : written.index("\n## Results")]
    for name in ("tsm_r18", "slowfast_tiny", "uniformer_tiny"):
        assert models_table([name]).splitlines()[2] in table.splitlines()
    monkeypatch.setattr("ffn.cli.zoo.models_table", lambda names: table)  # all of them: below
    assert written == page(FOLDER), "run tools/zoo.py --write"


@pytest.mark.slow
def test_the_page_has_the_cost_of_every_model() -> None:
    assert models_table(list_models()) in (FOLDER / "README.md").read_text()


def test_every_record_has_its_line() -> None:
    lines = weights_table(list_weights()).splitlines()[2:]
    assert len(lines) == len(list_weights())
    for name, line in zip(list_weights(), lines, strict=True):
        record = find_record(name)
        assert line.startswith(f"| `{name}` | `{record.model}`, ")
        assert line.count(" | ") == 6
        for frames in record.trained_frames or ():
            assert f"{frames}: {record.metrics[frames]['top1']:.2f}" in line
        assert ("on first download" in line) == (record.sha256 is None)


def test_a_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tsm_r50.sthv1_*"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 4
    assert (
        "| `tsm_r50.sthv1_f4_8_16` | `tsm_r50`, frame-flexible | 174 | 4: 42.85, 8: 48.20"
        in printed
    )


def test_models_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "tsm_r50", "--frames", "4", "8"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert head == "| model | parameters | flexible | 4 frames | 8 frames |"
    assert line == "| `tsm_r50` | 23.86 M | +0.61 % | 16.35 | 32.70 |"  # as test_complexity.py

    assert main(["--models", "tsm.resnet18", "--frames", "8", "--side", "256"]) == 0
    assert "| `tsm.resnet18` | 11.27 M | +0.21 % | 18.95 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["tsm_r5"], 'no model "tsm_r5"; did you mean tsm_r50'),
        (["tsm_tiny", "--frames", "0"], r"frames are [0] at 224 px; expected at least 1"),
        (["uniformer_tiny", "--side", "220"], "takes multiples of 8 from 16 up"),
    ],
)
def test_models_that_cannot_be_counted(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--models", *given]) == 2
    assert message in capsys.readouterr().err


def test_sizes_without_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tsm_r50*", "--frames", "8"])
    assert "need --models" in capsys.readouterr().err


def test_a_model_of_another_package_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_listed_package.py").write_text(
        "from ffn.backbones import register\n"
        "from ffn.backbones.tsm import tsm_tiny\n"
        "@register\n"
        "def my_listed_net(**kwargs):\n"
        "    return tsm_tiny(**kwargs)\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["--models", "my_listed*", "--frames", "4"]
    assert main(command) == 2
    assert 'no model "my_listed*"' in capsys.readouterr().err
    try:
        assert main([*command, "--imports", "my_listed_package"]) == 0
        assert "| `my_listed_net` | 0.33 M | +1.00 % | 0.87 |" in capsys.readouterr().out
    finally:
        sys.modules.pop("my_listed_package", None)
        _models._entries.pop("my_listed_net", None)
    assert main([*command, "--imports", "no_such_package"]) == 2
    assert "cannot import 'no_such_package'" in capsys.readouterr().err
