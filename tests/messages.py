"""What the commands answer to common mistakes; the table in docs/messages.md.

``python tests/messages.py`` runs all and writes the table. Each case has a folder with small
generated videos. A row states the mistake, what version 0.2.0 did, and the message.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

import ffn
from ffn.cli import main
from ffn.datasets.synthetic import generate

PAGE = Path(__file__).resolve().parents[1] / "docs/messages.md"
COLUMNS = ("what was done", "version 0.2.0", "now")
START = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
SHIPPED = "tsm_tiny.motion_f4_8_16"


@dataclass(frozen=True)
class Case:
    """A mistake.

    Attributes:
        done: what was done, in words.
        before: what version 0.2.0 did.
        act: does it, in the current folder; prints or raises the message.
    """

    done: str
    before: str
    act: Callable[[], object]


def command(name: str, *arguments: str) -> None:
    """Run a command."""
    importlib.import_module(f"ffn.cli.{name}").main(list(arguments))


def train(*options: str) -> None:
    """Train for a step on the generated videos."""
    quiet = ("log.wandb=disabled", "data.workers=0", "train.epochs=1", "train.batch_size=4")
    command("train", "quickstart/motion_flexible", *quiet, "log.output=run", *options)


def check(text: str, *options: str) -> None:
    """Read a list as training data."""
    Path("data/motion/own.csv").write_text(text, encoding="utf-8")
    train("data.train=own.csv", *options)


def videos() -> list[str]:
    """Paths of some videos, relative to data/motion."""
    root = Path("data/motion")
    return sorted(str(path.relative_to(root)) for path in root.glob("videos/**/*.mp4"))[:9]


def rows(labels: list[object], head: str = "path,label", between: str = ",") -> str:
    """A list of the videos with these labels."""
    lines = [f"{video}{between}{label}" for video, label in zip(videos(), labels, strict=False)]
    return "\n".join([*([head.replace(",", between)] if head else []), *lines]) + "\n"


def no_classes(*options: str) -> tuple[str, ...]:
    return ("data.classes=", *options)


def frames_with_other_names() -> None:
    folder = Path("frames")
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (32, 32)).save(folder / f"frame-{i:03d}.png")
    command("predict", "--weights", SHIPPED, "frames")


def huge_image() -> None:
    folder = Path("huge")
    folder.mkdir()
    Image.new("1", (13_000, 13_000)).save(folder / "00001.jpg")
    command("predict", "--weights", SHIPPED, "huge")


def pipe_among_frames() -> None:
    folder = Path("pipe")
    folder.mkdir()
    os.mkfifo(folder / "00001.jpg")
    command("predict", "--weights", SHIPPED, "pipe")


def replaced_video() -> None:
    train("log.output=again")
    Path("data/motion", videos()[0]).write_bytes(Path("data/motion", videos()[1]).read_bytes())
    train("log.output=again", "train.epochs=2")


def latin_config() -> None:
    Path("latin.yaml").write_bytes("# Größe\nmodel:\n  name: tsm_tiny\n".encode("latin-1"))
    command("train", "latin.yaml")


def existing_results() -> None:
    Path("kept").mkdir()
    Path("kept/results.json").write_text("{}")
    command("test", "quickstart/motion_flexible", "--weights", SHIPPED, "--output", "kept")


def unreadable_validation() -> None:
    root = Path("data/motion")
    (root / "broken.mp4").write_bytes(b"no video")
    (root / "broken.csv").write_text("path,label\nbroken.mp4,0\n")
    train("data.val=broken.csv", "data.on_error=skip", *no_classes())


def misspelled_command() -> None:
    with patch.object(sys, "argv", ["ffn", "trian"]):
        main()


def damaged_record() -> None:
    Path("damaged.json").write_text("{}\n{}\n")
    command("summarise", "damaged.json", "--output", "summary")


CASES = (
    Case(
        "a text list with tabs and a header, and a row with spaces",
        "a video of class `label`",
        lambda: check_text(rows([0, 1, 2], between="\t") + "x.mp4 1\n"),
    ),
    Case(
        "labels 1 to 6",
        "training of 7 classes",
        lambda: check(rows([1, 2, 3, 4, 5, 6]), *no_classes()),
    ),
    Case(
        "one stray label 9 among 0 to 5",
        "training of 10 classes",
        lambda: check(rows([0, 1, 2, 3, 4, 5, 9]), *no_classes()),
    ),
    Case(
        "labels like 20231122",
        "memory for 20 million classes",
        lambda: check(rows([20231122, 20231123]), *no_classes()),
    ),
    Case(
        "`clip.mp4 long jump` in a text list whose other labels are numbers",
        "a video `clip.mp4 long` of class `jump`",
        lambda: check_text(rows([0, 1], head="", between=" ") + f"{videos()[2]} long jump\n"),
    ),
    Case(
        "an unclosed quote in a csv",
        "`1 cells under 2 columns`",
        lambda: check('path,label\n"videos/a.mp4,0\nvideos/b.mp4,1\n', *no_classes()),
    ),
    Case(
        "validation with the training list",
        "nothing said",
        lambda: train("data.val=train.csv"),
    ),
    Case(
        "`train.clip_grad_norm=-1`",
        "gradient ascent, exit status 0",
        lambda: train("train.clip_grad_norm=-1"),
    ),
    Case(
        "`optim.weight_decay=nan`",
        "steps are skipped, then `lower optim.lr`",
        lambda: train("optim.weight_decay=nan"),
    ),
    Case("`task.frames=[4,8`", "traceback", lambda: train("task.frames=[4,8")),
    Case(
        "`task.frames=x`",
        "`str is not a ListConfig, list or tuple`",
        lambda: train("task.frames=x"),
    ),
    Case("`--epochs 3`", "`unrecognized arguments: --epochs 3`", lambda: train("--epochs", "3")),
    Case("`ffn trian`", "a list of commands", misspelled_command),
    Case("a config in Latin-1", "traceback", latin_config),
    Case(
        "`--device cuda` without CUDA",
        "`unrecognized arguments: --device cuda`",
        lambda: command(
            "test", "quickstart/motion_flexible", "--weights", SHIPPED, "--device", "cuda"
        ),
    ),
    Case("`tools/test.py` with an `--output` of earlier results", "overwritten", existing_results),
    Case("no validation video can be read", "accuracy 0, and a `best.pt`", unreadable_validation),
    Case("a video was replaced before a run is resumed", "the run goes on", replaced_video),
    Case("a damaged results file", "`Extra data: line 2`", damaged_record),
    Case("frames `frame-000.png`, …", "no pattern is named", frames_with_other_names),
    Case(
        "a folder of videos where one video is expected",
        "no frames found, without a remedy",
        lambda: command("predict", "--weights", SHIPPED, "data/motion/videos"),
    ),
    Case("an image of 13,000 x 13,000 pixels", "decoded, with a warning of PIL", huge_image),
    Case("a named pipe among frames", "waits without end", pipe_among_frames),
    Case(
        "a clip (B, T, C, H, W)",
        "`expected input[3, 8, 24, 24] to have 3 channels, but got 8 channels`",
        lambda: ffn.load(SHIPPED)(torch.zeros(1, 8, 3, 24, 24)),
    ),
    Case(
        "`ffn.Predictor(array)`",
        "`expected str, bytes or os.PathLike object, not ndarray`",
        lambda: ffn.Predictor(np.zeros((8, 24, 24, 3), np.uint8)),
    ),
    Case(
        "`ffn.create_model('tsm_tiny', num_clases=5)`",
        "`leave it out`",
        lambda: ffn.create_model("tsm_tiny", num_clases=5),
    ),
)


def check_text(text: str) -> None:
    Path("data/motion/own.txt").write_text(text, encoding="utf-8")
    train("data.train=own.txt", *no_classes())


def answer(case: Case) -> str:
    """The message, in one line, without the folder and the usage of the command."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            case.act()
        except SystemExit:
            pass
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=err)
    lines = [line.strip() for line in err.getvalue().splitlines()]
    found = next(line for line in lines if re.match(r"[\w.]+: ", line) and "usage:" not in line)
    return re.sub(r"bytes \d+ -> \d+", "bytes 7882 -> 8478", found)  # differ with the encoder


@functools.cache
def generated() -> tempfile.TemporaryDirectory:
    """A folder with the videos, until the end of the program."""
    folder = tempfile.TemporaryDirectory()
    generate(Path(folder.name), train_per_class=1, val_per_class=1)
    return folder


@contextlib.contextmanager
def small_videos() -> Iterator[None]:
    """Work in a new folder with 24 small generated videos."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            shutil.copytree(generated().name, "data/motion")
            yield
        finally:
            os.chdir(before)


def table_row(case: Case) -> str:
    with small_videos():
        cells = (case.done, case.before, answer(case))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def write() -> None:
    """Write the table to the page."""
    text = PAGE.read_text(encoding="utf-8").partition(START)[0]
    PAGE.write_text(text + START + "".join(map(table_row, CASES)), encoding="utf-8")


if __name__ == "__main__":
    write()
