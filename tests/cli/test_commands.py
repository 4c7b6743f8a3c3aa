"""The command line ``ffn COMMAND``, and argument types that commands share."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import pytest

from ffn import cli
from ffn.cli.arguments import add_imports_argument, load_imports, positive_int
from ffn.registry import ExtensionError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ffn", *arguments])
    return cli.main()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_all_commands(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 0

    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert shown == list(cli.COMMANDS)


def test_an_unknown_command_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "plot-logs", "runs/a") == 2

    printed = capsys.readouterr()
    assert printed.err.startswith("ffn: no command 'plot-logs'; did you mean `ffn plot_log`?")
    assert "usage: ffn COMMAND" in printed.err
    assert not printed.out


def test_a_command_gets_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "plot-log", "no_such_run") == 2

    assert capsys.readouterr().err.startswith("ffn plot_log: ")


def test_every_command_has_a_module_and_a_script() -> None:
    root = Path(cli.__file__).parents[2]
    shared = {"__init__", "arguments", "calibration", "cross_validation_plan", "program"}
    shared |= {"predict_list", "zoo_page"}
    modules = {path.stem for path in (root / "ffn/cli").glob("*.py")} - shared
    scripts = {path.stem for path in (root / "tools").glob("*.py")}

    assert modules == scripts
    assert modules <= set(cli.COMMANDS)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "four", "1e3"])
def test_a_positive_integer(text: str) -> None:
    assert positive_int("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="is not an integer of 1 or more"):
        positive_int(text)


def test_imports_are_loaded_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_extension_of_a_user.py").write_text("LOADED = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    parser = argparse.ArgumentParser()
    add_imports_argument(parser)

    load_imports(parser.parse_args([]))
    assert "toy_extension_of_a_user" not in sys.modules
    load_imports(parser.parse_args(["--imports", "toy_extension_of_a_user"]))

    assert sys.modules.pop("toy_extension_of_a_user").LOADED
    with pytest.raises(
        ExtensionError, match=r"cannot import 'no_such_package'.*install the package"
    ):
        load_imports(parser.parse_args(["--imports", "no_such_package"]))

    for code, message in {
        "\nunknown_name": r"\(NameError: .*correct the package: .*toy_error_of_a_user.py, line 2",
        "\ndef (": r"\(SyntaxError: .*toy_error_of_a_user.py, line 2\)\); correct the package$",
        "\nimport no_such_module": "no_such_module.*correct the package: .*_of_a_user.py, line 2",
    }.items():
        (tmp_path / "toy_error_of_a_user.py").write_text(code)
        importlib.invalidate_caches()
        with pytest.raises(ExtensionError, match=message):
            load_imports(parser.parse_args(["--imports", "toy_error_of_a_user"]))
