"""The command blocks of the README run on a CPU, those that need no public data set."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ffn.datasets.synthetic import generate
from ffn.engine.config import load_config
from ffn.serve import Client

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("bash") for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the generated data, few videos per class, in the README's folder."""
    folder = tmp_path_factory.mktemp("readme")
    generate(folder / "data" / "motion", train_per_class=1, val_per_class=1)
    return folder


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in commands() if "tools/train.py" in c], ids=" ".join)
def test_training_command_has_a_valid_config(command: list[str]) -> None:
    _, config, *options = command[command.index("tools/train.py") :]
    assert load_config(ROOT / config, options).model.name


@pytest.mark.parametrize(
    "command",
    [c for c in commands() if c[1] in ("tools/test.py", "tools/predict.py")],
    ids=lambda c: c[1],
)
def test_command_runs_on_the_weights_that_ship(
    command: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    (folder / "configs").is_symlink() or (folder / "configs").symlink_to(ROOT / "configs")
    main = importlib.import_module(f"ffn.cli.{Path(command[1]).stem}").main
    assert command[0] == "python"
    assert main(command[2:]) == 0
    if command[1] == "tools/predict.py":  # the first answer that a newcomer sees is right
        label = Path(command[2]).stem.removeprefix("val_").rpartition("_")[0]
        assert capsys.readouterr().out.splitlines()[1].endswith(f"%  {label}")


def first_steps() -> list[str]:
    section = README.partition("## First steps")[2]
    return re.search(r"```bash\n(.*?)```", section, flags=re.DOTALL)[1].splitlines()


@pytest.mark.slow
def test_first_steps(tmp_path: Path) -> None:
    """From nothing to a service of a fine-tuned network, as a newcomer types it."""
    for name in ("tools", "examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    # A clone has the models beside the tools; the environment names the versions of this one.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FFN_HOME": str(tmp_path / "home")}
    options = {"cwd": tmp_path, "env": environment, "text": True}
    *steps, serve = (shlex.split(line) for line in first_steps())
    for words in steps:
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, **options)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "own_8.onnx").is_file()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    words = [sys.executable, *serve[1:], "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, **options) as process:
        try:
            for line in process.stdout:
                if line.startswith("Ctrl-C"):
                    break
            clip = tmp_path / "data/motion/videos/val_pulse_once_0000.mp4"
            answers = Client(f"http://127.0.0.1:{port}").predict(clip, [4, 8, 16])
        finally:
            process.terminate()
    assert [one["sub_network"] for one in answers] == [4, 8, 16]


def test_every_tool_that_is_named_exists() -> None:
    for tool in re.findall(r"tools/\w+\.py", README):
        assert (ROOT / tool).is_file(), tool
    for target in re.findall(r"make ([\w-]+)", README):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("label", "run"),
    [
        ("**2 to 20: one network**", "any_count"),
        ("**4, 8 and 16: one network**, as in the paper", "flexible"),
        ("the same, `task.small_views=mixed`", "mixed"),
        ("4 alone", "plain_4"),
        ("8 alone", "plain_8"),
        ("16 alone", "plain_16"),
        ("nine networks, each at its count", "separate networks"),
    ],
)
def test_results_are_those_of_the_tool(label: str, run: str) -> None:
    (line,) = (line for line in README.splitlines() if line.startswith(f"| {label} |"))
    *cells, _ = line.removeprefix(f"| {label} |").split("|")
    runs = json.loads((ROOT / "model_zoo/results/motion_any_count.json").read_text())["runs"]
    rows = {row["frames"]: row["top1_mean"] for row in runs[run]["rows"]}
    trained = runs[run]["trained_frames"]
    for count, cell in zip(range(2, 21, 2), cells, strict=True):
        shown = cell.strip()
        assert shown.startswith("**") == (count in trained and count in rows)
        if count in rows:
            assert float(shown.strip("*")) == pytest.approx(rows[count], abs=0.0501)


def top1(stem: str, run: str, frames: int) -> float:
    content = json.loads((ROOT / f"model_zoo/results/{stem}.json").read_text())
    rows = content["runs"][run]["rows"]
    return next(row["top1_mean"] for row in rows if row["frames"] == frames)


def test_sentences_about_results_say_what_was_measured() -> None:
    text = " ".join(README.split())
    record = (ROOT / "model_zoo/weights/tsm_tiny.motion_f4_8_16.yaml").read_text()
    shipped = yaml.safe_load(record)
    assert "About one film in four gets a wrong label" in text
    assert shipped["metrics"][16]["top1"] == pytest.approx(75, abs=2.5)
    counts = (4, 8, 16)
    ships = " / ".join(f"{shipped['metrics'][t]['top1']:.1f}" for t in counts)
    recipe = " / ".join(f"{top1('motion_any_count', 'flexible', t):.1f}" for t in counts)
    assert f"it has {ships} %; networks that are trained with the present recipe" in text
    assert f"present recipe have {recipe} %" in text
    ours, separate = (
        [top1("motion_any_count", run, t) for t in counts]
        for run in ("flexible", "separate networks")
    )
    below = [f"{abs(alone - one):.1f}" for alone, one in zip(separate, ours, strict=True)]
    assert f"is {below[0]} points above the separate one at 4 frames, and" in text
    assert f"and {below[1]} and {below[2]} points below those at 8 and 16" in text
    lost = " / ".join(
        f"{top1('motion', 'flexible', t) - top1('motion', 'shared_norms', t):.1f}" for t in counts
    )
    assert f"the paper's network loses {lost} points at 4 / 8 / 16" in text

    even = range(2, 21, 2)
    ours, paper = (
        {t: top1("motion_any_count", run, t) for t in even} for run in ("any_count", "flexible")
    )
    gain = sum(ours[t] - paper[t] for t in even) / len(even)
    assert f"is {gain:.1f} points above it in the mean" in text
    missed = {
        t: top1("motion_any_count", "separate networks", t) - ours[t] for t in even if t != 18
    }
    assert f"It is {-missed.pop(8):.1f} points above the separate network at 8 frames" in text
    assert f"and {min(missed.values()):.1f} to {max(missed.values()):.1f} points below" in text

    families = {
        family: tuple(
            {t: top1("motion_any_count_families", f"{family}_{form}", t) for t in even}
            for form in ("plain_16", "any_count", "flexible")
        )
        for family in ("tea", "slowfast", "uniformer")
    }
    plain, ours = ([runs[n][4] for runs in families.values()] for n in (0, 1))
    gains = [sum(o[t] - f[t] for t in even) / len(even) for _, o, f in families.values()]
    assert f"only, they have {min(plain):.0f} to {max(plain):.0f} % at 4 frames" in text
    assert (
        f"at any count, {min(ours):.0f} to {max(ours):.0f} % at 4 frames, and more at 16 too"
        in text
    )
    assert all(o[16] > p[16] for p, o, _ in families.values())
    assert f"gains {min(gains):.1f} to {max(gains):.1f} points over training at 4, 8 and" in text
