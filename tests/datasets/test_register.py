"""Data sets of packages outside ffn: registered by a decorator, prepared by the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from preparation_layouts import Layouts, index, write_videos

from ffn.data import read_annotations
from ffn.datasets import (
    DATASETS,
    Entry,
    Listing,
    PreparationError,
    SplitSettings,
    prepare,
    register_dataset,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the package of docs/data.md."""
    text = (ROOT / "docs/data.md").read_text()
    (code,) = re.findall(r"```python\n# my_package/__init__\.py\n(.*?)```", text, flags=re.DOTALL)
    folder = tmp_path / "code"
    (folder / "my_package").mkdir(parents=True)
    (folder / "my_package/__init__.py").write_text(code)
    return folder


@pytest.fixture
def empty_name(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that is free again after the test."""
    monkeypatch.setitem(DATASETS._entries, "toy", None)
    del DATASETS._entries["toy"]
    return "toy"


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/prepare_data.py"), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_package_of_the_docs_is_prepared_by_the_command_line(
    layouts: Layouts, package: Path
) -> None:
    write_videos(layouts, 2)  # train/run/0.mp4, … with 5, 6 frames
    layouts.video("train/jump/a.mp4", 7)
    layouts.text("train.csv", [f"train/run/{n}.mp4,run" for n in range(3)])
    with (layouts.root / "train.csv").open("a") as file:
        file.write("train/jump/a.mp4,jump\n")
    layouts.text("val.csv", [f"val/run/{n}.mp4,run" for n in range(2)])
    (layouts.root / "val/run/1.mp4").write_bytes(b"not a video")

    options = ("--root", layouts.root, "--workers", 2)
    done = command(package, "mine", "--imports", "my_package", *options)

    assert done.returncode == 1, done.stderr
    assert "missing: train train/run/2.mp4: train.csv:3: no such video on disk" in done.stdout
    assert "unreadable: val val/run/1.mp4" in done.stdout
    folder = layouts.root / "index"
    records, classes = read_annotations(
        folder / "train.csv", root=layouts.root, classes=folder / "classes.txt"
    )
    assert classes == ["jump", "run"]
    assert [(Path(r.path).name, r.label, r.frames) for r in records] == [
        ("0.mp4", 1, 5),
        ("1.mp4", 1, 6),
        ("a.mp4", 0, 7),
    ]
    assert len(read_annotations(folder / "val.csv", root=layouts.root, classes=classes)[0]) == 1


@pytest.mark.slow
def test_help_and_errors_name_the_data_sets(package: Path, tmp_path: Path) -> None:
    listed = command(package, "--imports", "my_package", "--help").stdout
    assert "sthv1" in listed
    assert re.search(r"\bmine\b", listed)

    unknown = command(package, "mines", "--root", tmp_path, "--imports", "my_package")
    assert unknown.returncode == 2
    assert "unknown data set 'mines'; did you mean mine?" in unknown.stderr
    assert "--imports PACKAGE" in unknown.stderr

    absent = command(package, "mine", "--root", tmp_path, "--imports", "no_such_package")
    assert absent.returncode == 2
    assert "cannot import 'no_such_package' (ModuleNotFoundError" in absent.stderr


def test_a_listing_without_splits_is_split_at_random(layouts: Layouts, empty_name: str) -> None:
    for number in range(10):
        layouts.video(f"clips/{number}.mp4")

    @register_dataset(empty_name)
    def read(videos, lists):
        names = [f"clips/{number}.mp4" for number in range(10)]
        return Listing(["run"], [], [Entry("", name, "run", "here", name) for name in names])

    summary = prepare(empty_name, layouts.root, split=SplitSettings(val_fraction=0.3))

    assert summary.problems == []
    assert [split.indexed for split in summary.splits] == [7, 3]
    paths = [row["path"] for name in ("train", "val") for row in index(layouts.root, name)]
    assert sorted(paths) == [f"clips/{number}.mp4" for number in range(10)]


def test_errors_of_a_reader_are_named(layouts: Layouts, empty_name: str) -> None:
    write_videos(layouts, 1)
    listing = Listing(["run"], ["train"], [Entry("val", "a", "run", "list:1", "val/run/0.mp4")])

    register_dataset(empty_name)(lambda videos, lists: listing)
    with pytest.raises(PreparationError, match=r"list:1: a has the split 'val'; expected one of"):
        prepare(empty_name, layouts.root)

    del DATASETS._entries[empty_name]
    register_dataset(empty_name)(lambda videos, lists: None)
    with pytest.raises(PreparationError, match=r"toy returned NoneType; expected .*Listing"):
        prepare(empty_name, layouts.root)


def test_a_built_in_name_is_taken() -> None:
    with pytest.raises(ValueError, match=r"'sthv1' is taken by ffn\.datasets\.something\.sthv1"):

        @register_dataset("sthv1")
        def mine(videos, lists): ...
