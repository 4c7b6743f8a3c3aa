"""What all commands share: names, options in any position, errors, Ctrl-C, pipes, devices."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from ffn import cli
from ffn.cli import program

ROOT = Path(__file__).parents[2]
WEIGHTS = "tsm_tiny.motion_f4_8_16"


def run(command: str, *arguments: str) -> int:
    return importlib.import_module(f"ffn.cli.{command}").main(list(arguments))


def parser() -> program.Parser:
    parser = program.Parser(prog="x.py")
    parser.add_argument("config")
    parser.add_argument("options", nargs="*")
    parser.add_argument("--weights", nargs="+", required=True)
    parser.add_argument("--frames", nargs="+", type=int)
    parser.add_argument("--where")
    parser.add_argument("--no-fuse", action="store_true")
    return parser


@pytest.mark.parametrize(
    "arguments",
    [
        "c.yaml --weights w data.root=D",
        "c.yaml --weights w --frames 2 4 data.root=D",
        "data.root=D c.yaml --weights w",
        "--no-fuse data.root=D --weights w --where a=b c.yaml",
        "--weights w data.root=D --frames 2 -- c.yaml",
    ],
)
def test_overrides_in_any_position(arguments: str) -> None:
    given = parser().parse_with_overrides(arguments.split())
    assert (given.config, given.weights, given.options) == ("c.yaml", ["w"], ["data.root=D"])
    assert given.where in (None, "a=b")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_characters_that_a_console_lacks(encoding: str) -> None:
    code = (
        "from ffn.cli.program import program; "
        "program('x', '')(lambda _: print('caf\\u00e9 \\u2026 \\u0434 \\udcff') or 0)()"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    expected = {"latin-1": "caf\u00e9 \\u2026 \\u0434", "ascii": r"caf\xe9 \u2026 \u0434"}
    shown = expected.get(encoding, "caf\u00e9 \u2026 \u0434") + r" \udcff"
    assert done.stdout.decode(encoding).strip() == shown, done.stderr


def test_values_with_an_equals_sign_are_not_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1.pt").touch()
    weights = ["runs/lr=0.1/best.pt", "lr=1.pt"]
    given = parser().parse_with_overrides(["c", "--weights", *weights, "train.epochs=3", "x.y=1"])
    assert given.weights == weights
    assert given.options == ["train.epochs=3", "x.y=1"]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", "c.yaml --epochs 3", "no option --epochs; .*key=value: train.epochs=3$"),
        ("train", "c.yaml --epochs=3", "train.epochs=3$"),
        ("train", "c.yaml --batch-size 8", "train.batch_size=8$"),
        ("train", "c.yaml --train.epochs 3", "train.epochs=3$"),
        ("train", "c.yaml --num-workers 2", "data.workers=2$"),
        ("train", "c.yaml --frobnicate", "no option --frobnicate; --help lists all$"),
        ("test", "c.yaml --weights w --workers 2", "data.workers=2$"),
        (
            "test",
            "c.yaml --weihgts w",
            "required: --weights; no option --weihgts; did .* --weights",
        ),
        ("pack", "c.yaml --qualty 80", "no option --qualty; did you mean --quality"),
        ("predict", "a.mp4 --weights w --tpo 3", "no option --tpo; did you mean --top"),
        ("benchmark", "infer --onxn", "no option --onxn; did you mean --onnx"),
    ],
)
def test_unknown_options(
    command: str, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(command, *arguments.split())
    assert stopped.value.code == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, last), last


def test_help_names_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for command in cli.COMMANDS:
        cases = {
            "/usr/bin/ffn": f"ffn {command}",
            f"tools/{command}.py": f"python tools/{command}.py",
        }
        cases["pytest"] = f"{command}.py"
        for called, shown in cases.items():
            monkeypatch.setattr(sys, "argv", [called])
            with suppress(SystemExit):  # train's returns
                run(command, "--help")
            assert capsys.readouterr().out.startswith(f"usage: {shown} ")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setattr(sys, "argv", ["tools/train.py"])
    assert program.called_as("train") == "torchrun … tools/train.py"


def test_messages_name_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for called, shown, other in (
        ("ffn", "ffn train", "ffn configs"),
        ("tools/train.py", "train.py", "tools/configs.py"),
        ("/clone/tools/train.py", "train.py", "tools/configs.py"),
        ("own_loop.py", "train.py", "ffn configs"),  # may run without a clone
    ):
        monkeypatch.setattr(sys, "argv", [called])
        assert run("train", "no_such.yaml") == 2
        message = capsys.readouterr().err
        assert message.startswith(f"{shown}: no config file no_such.yaml, and no config ")
        assert message.endswith(f"{other} lists all\n")


@pytest.mark.parametrize(
    ("command", "arguments", "works", "message"),
    [
        ("pack", "quickstart/motion_flexible", "ffn.data.pack", "the same command resumes"),
        (
            "check_data",
            "data/motion/val.csv --root data/motion",
            "ffn.datasets.checking.check_videos",
            "nothing is written; the same command starts again",
        ),
        (
            "predict",
            f"a.mp4 --weights {WEIGHTS}",
            "ffn.serve.clips.ClipReader.read",
            "the same command starts again; leave out the files above",
        ),
        (
            "test",
            f"quickstart/motion_flexible --weights {WEIGHTS} --output new",
            "ffn.evaluation.sweep",
            "no table is written; the same command starts again (--overwrite replaces saved "
            "predictions)",
        ),
    ],
)
def test_ctrl_c_ends_in_one_line(
    here: Path,
    command: str,
    arguments: str,
    works: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(works, interrupt)

    assert run(command, *arguments.split()) == 130
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == f"{command}.py: interrupted; {message}"


@pytest.mark.parametrize(
    "command",
    ["configs", "predict", *(pytest.param(c, marks=pytest.mark.slow) for c in ("zoo", "train"))],
)
def test_a_closed_pipe_gives_no_traceback(folder: Path, command: str) -> None:
    videos = sorted(map(str, (folder / "data/motion/videos").glob("*.mp4")))[:2]
    arguments = {
        "predict": [*videos, "--weights", WEIGHTS],
        "train": ["--help"],
        "zoo": ["list"],
    }.get(command, [])
    _check_closed_pipe(ROOT / f"tools/{command}.py", *arguments, folder=folder)


@pytest.mark.parametrize(
    "arguments", [[], *(pytest.param([a], marks=pytest.mark.slow) for a in ("--version", "help"))]
)
def test_a_closed_pipe_gives_no_traceback_of_the_installed_command(
    tmp_path: Path, arguments: list[str]
) -> None:
    (entry,) = metadata.entry_points(group="console_scripts", name="ffn")
    script = f"import sys; from {entry.module} import {entry.attr}; sys.exit({entry.attr}())"
    _check_closed_pipe("-c", script, *arguments, folder=tmp_path)


def _check_closed_pipe(*command: str | Path, folder: Path) -> None:
    """Run Python with a standard output that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *command],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    os.close(writer)
    assert not done.stderr
    assert done.returncode == 141


def test_version_and_help_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ffn.version import __version__

    monkeypatch.setattr(sys, "argv", ["ffn", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"ffn {__version__}\n"
    monkeypatch.setattr(sys, "argv", ["ffn", "help", "pack"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out.startswith("usage: ffn pack ")
    monkeypatch.setattr(sys, "argv", ["ffn", "trian"])
    assert cli.main() == 2
    assert "did you mean `ffn train`?" in capsys.readouterr().err


def test_messages_name_options_and_tools_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``--option`` and ``tools/*.py`` in a text of ffn, but those of other programs."""
    parsers: list[program.Parser] = []
    init = program.Parser.__init__

    def remember(self: program.Parser, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        parsers.append(self)

    monkeypatch.setattr(program.Parser, "__init__", remember)
    for command in cli.COMMANDS:
        with suppress(SystemExit):
            run(command, "--help")
    known = {name for one in parsers for name in one._option_string_actions}
    known |= {"--version", "--logdir", "--clips-per-class"}  # of ffn, tensorboard, the generator
    known |= {"--epochs", "--test_crops", "--full_res", "--twice_sample"}  # named as not ours
    known |= {"--always", "--dirty", "--data-binary", "--nproc_per_node"}  # of git, curl, torchrun
    for path in (ROOT / "ffn").rglob("*.py"):
        text = path.read_text()
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", text))
        assert not named - known, path
        assert all((ROOT / tool).is_file() for tool in re.findall(r"tools/\w+\.py", text)), path


def test_the_parser_is_used_everywhere() -> None:
    """Otherwise an unknown option of a command would give no hint."""
    for path in (ROOT / "ffn/cli").glob("*.py"):
        if path.stem not in ("program", "prepare_data"):  # it parses --imports first
            assert "argparse.ArgumentParser(" not in path.read_text().replace(
                "(argparse.ArgumentParser):", ""
            ), path
    assert issubclass(program.Parser, argparse.ArgumentParser)
