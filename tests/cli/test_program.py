"""What all commands share: parsing, errors, Ctrl-C, pipes, and answers without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ffn.cli import COMMANDS, main, parser, program
from ffn.cli.arguments import ConfigFile, FrameCounts, ManyWeights, Override

ROOT = Path(__file__).parents[2]
WEIGHTS = "tsm_tiny.motion_f4_8_16"
CONFIG = "quickstart/motion_flexible"


def toy(
    config: ConfigFile,
    /,
    *overrides: Override,
    weights: ManyWeights,
    frames: FrameCounts | None = None,
    where: str = "",
) -> None:
    """A command.

    Args:
        where: A place.
    """
    toy.given = (config.stem, overrides, weights, frames, where)


def call(arguments: str) -> tuple[object, ...]:
    parser.call("ffn toy", toy, arguments.split())
    return toy.given


def test_overrides_in_any_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").touch()
    (tmp_path / "a.b=1.pt").touch()
    for arguments in (
        f"c.yaml --weights {WEIGHTS} data.root=D imports=[p] --frames 2 4",
        f"data.root=D c.yaml --frames 2 4 imports=[p] --weights {WEIGHTS}",
    ):
        assert call(arguments) == ("c", ("data.root=D", "imports=[p]"), [WEIGHTS], [2, 4], "")
    given = call("c.yaml --weights a.b=1.pt --where x=1 train.epochs=3")
    assert given == ("c", ("train.epochs=3",), ["a.b=1.pt"], None, "x=1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (f"{CONFIG} --weihgts {WEIGHTS}", "--weights"),
        (CONFIG, "--weights"),
        (f"{CONFIG} --weights {WEIGHTS} --epochs 3", "key=value"),
        (f"{CONFIG} --weights {WEIGHTS} --frames 0", "--frames"),
        (f"{CONFIG} --weights {WEIGHTS} --frames many", "--frames"),
        (f"{CONFIG} --weights tsm_tiny.motion", WEIGHTS),
        (f"{CONFIG} --weights missing.pt", "missing.pt"),
        (f"{CONFIG} two --weights {WEIGHTS}", "key=value"),
    ],
)
def test_errors_of_the_parser(arguments: str, named: str) -> None:
    with pytest.raises(parser.UsageError, match=named):
        call(arguments)


def test_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> None:
        raise error

    assert program.run("ffn x", lambda: None) == 0
    assert program.run("ffn x", lambda: 75) == 75
    assert program.run("ffn x", lambda: fail(ValueError("why"))) == 2
    assert capsys.readouterr().err == "ffn x: why\n"
    assert program.run("ffn x", lambda: fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "\nffn x: interrupted\n"
    with pytest.raises(KeyError):  # a fault of ours keeps its traceback
        program.run("ffn x", lambda: fail(KeyError("x")))


def test_usage_version_and_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    assert main(["plot-logs"]) == 2
    assert "ffn plot_log" in capsys.readouterr().err


def ffn(
    *arguments: str, status: str = "main()", stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import torch."""
    code = "import sys; sys.modules['torch'] = None; from ffn.cli import COMMANDS, main; "
    code += f"sys.exit({status})"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_help_of_every_command_needs_no_torch() -> None:
    answer = ffn(status="max(main([command, '--help']) for command in COMMANDS)")
    assert answer.returncode == 0, answer.stderr
    assert all(f"Usage: ffn {command}" in answer.stdout for command in COMMANDS)


@pytest.mark.slow
def test_errors_need_no_torch() -> None:
    for arguments, status in {
        ("configs",): 0,
        ("trian",): 2,
        ("train", CONFIG, "--device-typo"): 2,
        ("train", "missing.yaml"): 2,
        ("plot_log", "missing"): 2,
    }.items():
        answer = ffn(*arguments)
        assert answer.returncode == status, answer.stderr
        assert "torch" not in answer.stderr.replace("torchrun", "")


def test_a_closed_pipe_gives_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer = ffn("configs", stdout=writer)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (141, "")
