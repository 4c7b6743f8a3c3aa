"""What all commands share: parsing, errors, Ctrl-C, pipes, and answers without torch."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
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


def test_errors_of_the_parser() -> None:
    for arguments, named in (
        (f"{CONFIG} --weihgts {WEIGHTS}", "--weights"),
        (CONFIG, "--weights is missing: Name in the zoo"),
        (f"{CONFIG} --weights {WEIGHTS} --epochs 3", "key=value"),
        (f"{CONFIG} --weights {WEIGHTS} --frames 0", "--frames"),
        (f"{CONFIG} --weights {WEIGHTS} --frames many", "--frames"),
        (f"{CONFIG} --weights tsm_tiny.motion", WEIGHTS),
        (f"{CONFIG} two --weights {WEIGHTS}", "key=value"),
    ):
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
    assert main(["find-lrs"]) == 2
    assert "ffn find_lr" in capsys.readouterr().err


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from ffn.cli import COMMANDS, main; "
HELP = "sys.exit(max(main([command, '--help']) for command in COMMANDS))"
STATUSES = "print(*(main(line.split()) for line in sys.argv[1].splitlines()))"


def run(code: str, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess:
    """Run code in a process that cannot import torch."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code, *arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_help_of_every_command_needs_no_torch() -> None:
    answer = run(HELP)
    assert answer.returncode == 0, answer.stderr
    assert all(f"Usage: ffn {command}" in answer.stdout for command in COMMANDS)
    assert "task.distill_weight=1.0" in answer.stdout  # an option of a config


def test_missing_inputs_and_typos_need_no_torch() -> None:
    lines = {
        "trian": "train",
        f"train {CONFIG} --device-typo": "--device",
        f"train {CONFIG} train.epoch=3": "train.epochs",
        f"find_lr {CONFIG} task.frame=[4]": "task.frames",
        f"test {CONFIG} --weights {WEIGHTS} data.roott=x": "data.root",
        f"test {CONFIG} --weights no.pt": "no.pt",
        "train no.yaml": "no.yaml",
        f"predict no.mp4 --weights {WEIGHTS}": "no.mp4",
        f"predict no.csv --output no.csv --weights {WEIGHTS}": "no.csv",
        f"live no.mp4 --weights {WEIGHTS}": "no.mp4",
        "serve --weights no.pt": "no.pt",
        "export --weights no.pt --frames 4 --to onnx": "no.pt",
        "publish no.pt name": "no.pt",
        "pack no.yaml": "no.yaml",
        "browse no.yaml": "no.yaml",
        "check_data no.csv": "no.csv",
        "prepare sthv2 --root no": "no",
    }
    answer = run(STATUSES, "\n".join(lines))
    assert answer.stdout.split() == ["2"] * len(lines), answer.stderr
    for named, line in zip(lines.values(), answer.stderr.splitlines(), strict=True):
        assert named in line


@pytest.mark.parametrize(("ends", "status"), [("return 3", 3), ("raise RuntimeError", 1)])
def test_the_process_ends_after_its_exit_handlers(ends: str, status: int) -> None:
    code = f"""
import atexit
from ffn import cli
def main(arguments):
    atexit.register(print, "handler", end="")
    print("main, ", end="")
    {ends}
cli.main = main
cli.run_process()"""
    done = run(code)
    assert (done.returncode, done.stdout) == (status, "main, handler")


@pytest.mark.parametrize(
    "place",
    [
        "import interrupted",  # an import that hides the exception
        "cli.main = interrupt",
        "cli.main = lambda _: atexit.register(interrupt) and 0",
    ],
)
def test_ctrl_c_in_every_phase(place: str, tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import os, signal
try: os.kill(os.getpid(), signal.SIGINT)
except BaseException: pass""")
    code = f"""
import atexit, os, signal, sys
from ffn.interrupts import handle_interrupts
handle_interrupts()
sys.path.append({str(tmp_path)!r})
sys.argv = ["ffn", "predict"]
from ffn import cli
from ffn.cli.program import run
def interrupt(*_):
    return run("ffn predict", lambda: os.kill(os.getpid(), signal.SIGINT))
{place}
cli.run_process(0)"""
    done = run(code)
    assert (done.returncode, done.stderr) == (130, "\nffn predict: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "stop_at", "status", "end"),
    [
        ("train CONFIG log.output=bar train.epochs=99", r" [2-9]/\d+ ", 75, "resumes the run"),
        ("find_lr CONFIG --steps 5000", "learning rates", 130, "ffn find_lr: interrupted"),
        ("live VIDEO --weights WEIGHTS --repeat", r"\d+%", 130, r"live: .* 0 answers skipped"),
    ],
    ids=["train", "find_lr", "live"],
)
def test_ctrl_c_at_a_terminal(
    command: str, stop_at: str, status: int, end: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key reaches all processes of the terminal; progress is shown there until then."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    video = str(next(here.rglob("*.mp4")))
    words = command.replace("CONFIG", f"{CONFIG} train.batch_size=4 data.workers=1")
    words = words.replace("WEIGHTS", WEIGHTS).replace("VIDEO", video)
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-m", "ffn", *words.split()])
    shown, pressed = "", False
    with suppress(OSError):  # the end of a terminal on Linux
        while piece := os.read(terminal, 4096):
            shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece.decode(errors="replace"))
            if not pressed and re.search(stop_at, shown):
                pressed = bool(os.write(terminal, b"\x03"))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == status, shown[-2000:]
    assert re.search(end, shown)
    assert "Traceback" not in shown


def test_a_closed_pipe_gives_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer = run("sys.exit(main())", "configs", stdout=writer)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (141, "")
