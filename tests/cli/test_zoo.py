"""The zoo's tables and page, and the commands that fetch and verify weights."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
from pathlib import Path

import pytest

from ffn.backbones.registry import _models
from ffn.cli.zoo import main
from ffn.cli.zoo_page import models_table, page, weights_table
from ffn.zoo import find_record, list_models, list_weights, records
from ffn.zoo.local import weights_path

FOLDER = Path(__file__).parents[2] / "model_zoo"


def test_the_page_is_what_the_tool_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = (FOLDER / "README.md").read_text()
    lines = re.findall(r"^\| `([^`.]+)` \| .+ M \|.+$", written, re.MULTILINE)
    assert lines == list_models()

    table = written[written.index("| model | parameters") : written.index("\n## Results")]
    for name in ("tsm_r18", "slowfast_tiny", "uniformer_tiny"):
        assert models_table([name]).splitlines()[2] in table.splitlines()
    monkeypatch.setattr("ffn.cli.zoo_page.models_table", lambda names: table)  # all of them: below
    assert written == page(FOLDER), "run tools/zoo.py table --write"


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
    assert main(["list", "tsm_r50.sthv1_*"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 4
    assert (
        "| `tsm_r50.sthv1_f4_8_16` | `tsm_r50`, frame-flexible | 174 | 4: 42.85, 8: 48.20"
        in printed
    )


def test_models_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--models", "tsm_r50", "--frames", "4", "8"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert head == "| model | parameters | flexible | 4 frames | 8 frames |"
    assert line == "| `tsm_r50` | 23.86 M | +0.61 % | 16.35 | 32.70 |"  # as test_complexity.py

    assert main(["list", "--models", "tsm.resnet18", "--frames", "8", "--side", "256"]) == 0
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
    assert main(["list", "--models", *given]) == 2
    assert message in capsys.readouterr().err


def test_sizes_without_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["list", "tsm_r50*", "--frames", "8"])
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
    command = ["list", "--models", "my_listed*", "--frames", "4"]
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FFN_HOME", str(tmp_path))
    return tmp_path


SHIPPED = "tsm_tiny.motion_f4_8_16"


def test_fetch_prints_path_size_and_hash_and_tries_all(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["fetch", "tsm_tiny.motion_f4*", SHIPPED]) == 0
    path = FOLDER / f"weights/{SHIPPED}.safetensors"
    digits = hashlib.sha256(path.read_bytes()).hexdigest()
    line = f"{SHIPPED}: {path}, 1,295,392 bytes, sha256 {digits}\n"
    assert capsys.readouterr() == (line, "")

    monkeypatch.setenv("FFN_OFFLINE", "1")
    assert main(["fetch", "tsm_tiny.motio", "tsm_r50.k400_f16", "hf://me/net", SHIPPED]) == 1
    printed, errors = capsys.readouterr()
    assert printed == line
    first, second, third, last = errors.splitlines()
    assert f'no weights "tsm_tiny.motio" in the zoo; did you mean {SHIPPED}' in first
    assert "tsm_r50.k400_f16.pth and the file with its SHA-256 to " in second
    assert third == f"zoo.py: hf://me/net is not in {home}/hub, and FFN_OFFLINE is set"
    assert last == "zoo.py: not fetched: tsm_tiny.motio, tsm_r50.k400_f16, hf://me/net"


def test_fetch_with_wrong_mirrors(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = find_record(SHIPPED)
    without = dataclasses.replace(record, file=None, url="http://127.0.0.1:9/x.safetensors")
    monkeypatch.setattr("ffn.zoo.local.find_record", lambda name: without)
    monkeypatch.setenv("FFN_MIRRORS", "mirror.local")
    assert main(["fetch", SHIPPED]) == 1
    assert "FFN_MIRRORS has 'mirror.local'; expected http" in capsys.readouterr().err


def test_verify(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[16:] for line in lines] == list_weights()
    assert f"ok              {SHIPPED}" in lines
    assert {line[:16].strip() for line in lines} == {"ok", "not downloaded"}

    record = find_record("tsm_r50.k400_f16")
    path = weights_path(record)
    path.parent.mkdir()
    path.write_bytes(b"x")
    path.with_name(f"{path.name}.sha256").write_text("0" * 64)
    assert main(["verify", "tsm_*.k400*"]) == 1
    digits = hashlib.sha256(b"x").hexdigest()
    assert capsys.readouterr().out.splitlines() == [
        f"differs         tsm_r50.k400_f16: {path} has sha256 {digits}, expected {'0' * 64}",
        "not downloaded  tsm_r50.k400_f4_8_16",
    ]
    assert main(["verify", "nothing"]) == 2
    assert capsys.readouterr().err == 'zoo.py: no weights "nothing" in the zoo or the cache\n'


def test_the_page_is_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffn.cli.zoo.page", lambda folder: f"# {folder.name}\n")
    monkeypatch.setattr(records, "zoo_folder", lambda: tmp_path / "model_zoo/weights")
    assert main(["table"]) == 0
    assert capsys.readouterr().out == "# model_zoo\n"
    assert not list(tmp_path.iterdir())
    assert main(["table", "--write"]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    (tmp_path / "model_zoo").mkdir()
    assert main(["table", "--write"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/model_zoo/README.md\n"
    assert (tmp_path / "model_zoo/README.md").read_text() == "# model_zoo\n"


@pytest.mark.parametrize("arguments", [[], ["tsm*"], ["--write"], ["fetch"]])
def test_a_subcommand_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: zoo.py" in capsys.readouterr().err


def test_a_pattern_that_nothing_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tsm_r50.sthv1_f4_8"]) == 2
    assert "did you mean tsm_r50.sthv1_f4_8_16" in capsys.readouterr().err
