"""What the commands answer to common mistakes; the table in docs/messages.md.

``python tests/messages.py`` runs all and writes the table. Each case has a folder with small
generated videos. A row states the mistake, what version 0.2.0 did, and the message.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import logging
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
from torch import nn

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
        line: pattern of the line with the message; default: the first error or warning.
    """

    done: str
    before: str
    act: Callable[[], object]
    line: str = ""


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


def shared_groups() -> None:
    for name in ("train", "val"):
        lines = Path(f"data/motion/{name}.csv").read_text().splitlines()
        lines = [f"{lines[0]},group", *(f"{line},person_{i}" for i, line in enumerate(lines[1:]))]
        Path(f"data/motion/{name}.csv").write_text("\n".join(lines) + "\n")
    train()


def report_in_the_data() -> None:
    root = Path("own")
    for label in ("pull", "push"):
        (root / label).mkdir(parents=True)
        shutil.copy(Path("data/motion", videos()[0]), root / label / "a.mp4")
    command("check_data", "own")


def hostile_record() -> None:
    shutil.copy(
        next(Path(__file__).parents[1].glob("model_zoo/weights/*.safetensors")), "own.safetensors"
    )
    counts = ", ".join(map(str, range(1, 20_001)))
    Path("own.yaml").write_text(
        "{name: own, model: tsm_tiny, num_classes: 3, preprocessing: {crop: 24, resize: 28}, "
        f"trained_frames: [{counts}]}}\n"
    )
    command("predict", "--weights", "own.safetensors", "a.mp4")


def text_as_a_film() -> None:
    Path("notes.txt").write_text("hello\n" * 2000)
    command("predict", "--weights", SHIPPED, "notes.txt")


def shorter_list() -> None:
    train("log.output=again")
    lines = Path("data/motion/train.csv").read_text().splitlines()
    Path("data/motion/train.csv").write_text("\n".join(lines[:-1]) + "\n")
    train("log.output=again", "train.epochs=2")


def more_epochs() -> None:
    train("log.output=again", "optim.warmup_epochs=0")
    train("log.output=again", "optim.warmup_epochs=0", "train.epochs=2")


def damaged_log() -> None:
    train("log.output=again")
    path = Path("again/log.jsonl")
    path.write_bytes(b"\0\0{" + path.read_bytes()[3:])
    train("log.output=again", "train.epochs=2")


def other_frames() -> None:
    train("task.frames=[2,6]", f"model.weights={SHIPPED}")


def interrupted_pack() -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with patch("ffn.data.pack", interrupt):
        command("pack", "quickstart/motion_flexible")


def foreign_network() -> nn.Module:
    return nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1))


def unknown_option() -> None:
    Path("mine.yaml").write_text("train:\n  epoch: 7\n")
    command("train", "mine.yaml")


def full_disk() -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch("ffn.data.store.writer.StoreWriter._write", full):
        command("pack", "quickstart/motion_flexible", "data.store=full", "data.workers=1")


def read_only_file_system() -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "results/.results.json.part")

    with patch("pathlib.Path.touch", read_only):
        given = ("quickstart/motion_flexible", "--weights", SHIPPED, "--output", "results")
        command("test", *given)


def unwritable_output() -> None:
    Path("file").touch()
    given = ("quickstart/motion_flexible", "--weights", SHIPPED, "--output", "file/results")
    command("test", *given)


def unreadable_training() -> None:
    root = Path("data/motion")
    (root / "broken.mp4").write_bytes(b"no video")
    rows = "broken.mp4,pulse_once\nbroken.mp4,orbit_clockwise\n" * 2
    (root / "broken.csv").write_text(f"path,label\n{rows}")
    train("data.train=broken.csv", "data.on_error=skip")


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
    Case(
        "`ffn.create_model(5)`",
        "`AttributeError: 'int' object has no attribute 'partition'`",
        lambda: ffn.create_model(5),
    ),
    Case(
        "a clip (B, T, C, H, W) for a converted network of another library",
        "`expected input[1, 8, 3, 24, 24] to have 3 channels, but got 8 channels`",
        lambda: ffn.convert(foreign_network(), (4, 8), alter="none")(torch.zeros(1, 8, 3, 24, 24)),
    ),
    Case(
        "the folder of `videos/` and its lists as `data.train`",
        "one class `videos`, accuracy 100 %",
        lambda: train("data.train=.", *no_classes()),
    ),
    Case(
        "training and validation videos of the same persons (column `group`)",
        "nothing said",
        shared_groups,
        "^warning: .* group",
    ),
    Case(
        "`check_data DIR` on a folder per class",
        "the report becomes a class of the folder",
        report_in_the_data,
        "report.csv",
    ),
    Case("`data.root=@work`", "traceback", lambda: train("data.root=@work")),
    Case("`data.root=${HOME}`", "traceback", lambda: train("data.root=${HOME}")),
    Case("`data.timeout=inf`", "traceback", lambda: train("data.timeout=inf")),
    Case("a record of weights with 20,000 frame counts", "minutes and memory", hostile_record),
    Case("a text file where a video is expected", "FFmpeg draws it as a film", text_as_a_film),
    Case(
        "a line was removed from the list before a run is resumed",
        "the run ends, without a remedy",
        shorter_list,
    ),
    Case(
        "`train.epochs` is raised before a run is resumed",
        "refused",
        more_epochs,
        "train.epochs 1 -> 2",
    ),
    Case("a damaged `log.jsonl` in a run that is resumed", "traceback", damaged_log, "log.jsonl"),
    Case(
        "`model.weights` trained at 4, 8 and 16 for `task.frames=[2,6]`",
        "refused",
        other_frames,
        "^private modules and alterations",
    ),
    Case("Ctrl-C while packing", "traceback", interrupted_pack, "interrupted"),
    Case("a full disk while packing", "`[Errno 28] No space left on device`", full_disk),
    Case("a read-only file system", "`[Errno 30] Read-only file system`", read_only_file_system),
    Case(
        "a config that does not ship, `quickstart/own_clip`",
        "`no config file quickstart/own_clip; see configs/ for the ones that ship`",
        lambda: command("train", "quickstart/own_clip"),
    ),
    Case("an `--output` that cannot be written", "an error after the test", unwritable_output),
    Case(
        "`optim.lr=1e9`",
        "the start weights are blamed",
        lambda: train("optim.lr=1e9", "train.max_bad_steps=1"),
    ),
    Case(
        "overrides after `--weights W`",
        "the override becomes a second name of weights",
        lambda: command(
            "test", "quickstart/motion_flexible", "--weights", SHIPPED, "data.rot=data/other"
        ),
    ),
    Case("a config with an unknown option", "the file is named, without the line", unknown_option),
    Case(
        "no training video can be read (`data.on_error=skip`)",
        "exit status 0, and a `best.pt`",
        unreadable_training,
    ),
)


def check_text(text: str) -> None:
    Path("data/motion/own.txt").write_text(text, encoding="utf-8")
    train("data.train=own.txt", *no_classes())


def answer(case: Case) -> str:
    """The message, in one line, without the folder and the usage of the command."""
    out, err = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(err)
    logging.getLogger("ffn").addHandler(handler)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            case.act()
        except SystemExit:
            pass
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=err)
    logging.getLogger("ffn").removeHandler(handler)
    text = err.getvalue() + (out.getvalue() if case.line else "")
    lines = [line.strip() for line in text.splitlines() if "usage:" not in line]
    found = next(line for line in lines if re.search(case.line or r"^[\w.]+: ", line))
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
