"""Own clips in five layouts: the README's commands, from the clips to a prediction."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import pytest

import ffn
from ffn.datasets.synthetic import generate

ROOT = Path(__file__).parents[1]
CLASSES = ("orbit_clockwise", "pulse_once", "sway_five_times")
START = "tsm_tiny.motion_f4_8_16"
SMALL = ["model.name=tsm_tiny", "data.crop=24", "data.resize=28", "data.workers=0"]
SHORT = ["train.epochs=1", "optim.warmup_epochs=0", "log.wandb=disabled"]
LISTS = ["data.train=index/train.csv", "data.val=index/val.csv", "data.classes=index/classes.txt"]


def clips(made: Path) -> Iterator[tuple[str, str, Path]]:
    """Split, label and file of each clip."""
    for split in ("train", "val"):
        for label in CLASSES:
            for path in sorted((made / "videos").glob(f"{split}_{label}_*.mp4")):
                yield split, label, path


def write_folders(made: Path, root: Path) -> list[str]:
    """A folder per class; a command makes the lists."""
    for _, label, path in clips(made):
        (root / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / label)
    return LISTS


def write_lists(made: Path, root: Path, write: Callable[[Path, list], None]) -> list[str]:
    """One folder of videos, and a list per split."""
    rows: dict[str, list] = {"train": [], "val": []}
    (root / "videos").mkdir(parents=True)
    for split, label, path in clips(made):
        shutil.copy(path, root / "videos")
        rows[split].append((f"videos/{path.name}", label))
    for split, found in rows.items():
        write(root / split, found)
    return []


def write_csv(path: Path, rows: list) -> None:
    with path.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows])


def write_txt(path: Path, rows: list) -> None:
    path.with_suffix(".txt").write_text("".join(f"{name} {label}\n" for name, label in rows))


def write_frames(made: Path, root: Path) -> list[str]:
    """A folder of JPEG files per clip, with names of the user, and a csv list per split."""
    rows: dict[str, list] = {"train": [], "val": []}
    for split, label, path in clips(made):
        folder = root / "frames" / path.stem
        folder.mkdir(parents=True)
        with av.open(str(path)) as container:
            for i, frame in enumerate(container.decode(video=0)):
                frame.to_image().save(folder / f"image-{i:04d}.jpg")
        rows[split].append((f"frames/{path.stem}", label))
    for split, found in rows.items():
        write_csv(root / split, found)
    return ["data.frame_pattern=image-{:04d}.jpg"]


def write_nested(made: Path, root: Path) -> list[str]:
    """A folder per split, with a folder per class."""
    for split, label, path in clips(made):
        (root / split / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / split / label)
    return ["data.train=train", "data.val=val"]


LAYOUTS = {
    "folders": write_folders,
    "csv": lambda made, root: write_lists(made, root, write_csv),
    "list": lambda made, root: [
        *write_lists(made, root, write_txt),
        "data.train=train.txt",
        "data.val=val.txt",
    ],
    "frames": write_frames,
    "nested": write_nested,
}


def readme_commands() -> list[list[str]]:
    """The two trainings that the README gives for own clips."""
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^python (tools/train\.py \S*own_clips\S* .*)$", text, flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def run(program: str, *arguments: object) -> None:
    main = importlib.import_module(f"ffn.cli.{Path(program).stem}").main
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("made"), train_per_class=4, val_per_class=2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_first_day(
    layout: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    root = tmp_path / "data/own"
    options = LAYOUTS[layout](made, root)
    pattern = ["--pattern", "image-{:04d}.jpg"] if layout == "frames" else []
    if layout == "folders":
        run("prepare", "folder", "--root", root, "--val-fraction", 0.34)
    index = {"folders": "index/train.csv", "list": "train.txt", "nested": "train"}
    place = [] if layout == "nested" else ["--root", root]
    run("check_data", root / index.get(layout, "train.csv"), *place, *pattern)

    plain, flexible = readme_commands()
    first = ["model.pretrained=false", f"model.weights={START}"]
    run(*plain, *options, *SMALL, *SHORT, *first)
    run(*flexible, *options, *SMALL, *SHORT)
    last = "runs/own_clips/last.pt"
    given = ["--weights", last, "--frames", "4", "8", "--output", "tested"]
    run("test", *flexible[1:], *options, *SMALL, *given)
    name = "tsm_tiny.own_f4_8_16"
    run("publish", last, name, "--results", "tested/results.json", "--output", "release")
    capsys.readouterr()
    clip = root / "frames" / "val_pulse_once_0000" if layout == "frames" else next(clips(made))[2]
    run("predict", clip, "--weights", f"release/{name}.safetensors", "--frames", "4")

    (network,) = json.loads(Path("tested/results.json").read_text())["networks"]
    assert [row["videos"] for row in network["rows"]] == [6, 6]
    assert ffn.Predictor(f"release/{name}.safetensors").classes == CLASSES
    shown = capsys.readouterr().out
    assert "4 frames, sub-network 4" in shown
    assert re.search(rf"%\s+({'|'.join(CLASSES)})$", shown, flags=re.MULTILINE)
