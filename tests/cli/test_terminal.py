"""Commands on a real terminal: their progress bar, and Ctrl-C as a key."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS = "tsm_tiny.motion_f4_8_16"
CTRL_C = b"\x03"

pytestmark = pytest.mark.slow


def on_terminal(command: Sequence[str], folder: Path, stop_at: str = "") -> tuple[int, str]:
    """Run a tool on a new terminal, and press Ctrl-C when a text appears.

    Returns:
        Exit status, and what the terminal got, without colors.
    """
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "ffn", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # the key reaches the group
    )
    os.close(theirs)
    got, pressed = "", False
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the end of a terminal on Linux
            piece = b""
        if not piece:
            break
        got += piece.decode(errors="replace")
        if stop_at and not pressed and re.search(stop_at, got):
            os.write(ours, CTRL_C)
            pressed = True
    os.close(ours)
    return process.wait(timeout=60), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", got)


def test_training_shows_a_bar_with_steps_and_time_left(folder: Path) -> None:
    options = ("train.epochs=2", "train.batch_size=4", "data.workers=0", "log.output=bar")

    status, shown = on_terminal(("train", "quickstart/motion_flexible", *options), folder)

    assert status == 0
    steps = [(int(done), int(of)) for done, of in re.findall(r"steps ━\S* +(\d+)/(\d+) ", shown)]
    assert {of for _, of in steps} == {6}  # 2 epochs of 12 videos
    assert steps == sorted(steps)
    assert steps[-1] == (6, 6)
    assert re.search(r" [1-6]/6 .*videos/s +data wait +\d+% .*left 0:00:\d\d", shown)


@pytest.mark.parametrize(
    ("command", "stop_at"),
    [
        ("find_lr quickstart/motion_flexible --steps 5000 train.batch_size=4", "learning rates"),
        (f"predict --weights {WEIGHTS} {'VIDEO ' * 3000}", "model .* ms"),
        ("pack quickstart/motion_flexible data.store=kept", "packing"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_ctrl_c(folder: Path, command: str, stop_at: str) -> None:
    video = next((folder / "data/motion").rglob("*.mp4"))
    words = command.replace("VIDEO", str(video)).split()

    status, shown = on_terminal(words, folder, stop_at)

    assert status == 130, shown[-2000:]
    assert shown.strip().splitlines()[-1].startswith(f"ffn {words[0]}: interrupted")
    assert "Traceback" not in shown
