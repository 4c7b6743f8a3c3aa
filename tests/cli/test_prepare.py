"""``ffn prepare``: exit status, output, the command that trains, refused options, ``--imports``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from preparation_layouts import NAMES, Layouts

from ffn.cli import main
from ffn.cli.configs import find_config
from ffn.cli.prepare import CONFIGS, OWN_CONFIG
from ffn.datasets import DATASETS
from ffn.engine.build_data import read_config_splits
from ffn.engine.config import load_config
from ffn.engine.options import Config


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory, write_video: Callable) -> Path:
    """Four videos in a folder per class, of classes that a flip exchanges."""
    root = tmp_path_factory.mktemp("set")
    for motion in ("orbit", "spin"):
        for turn in ("clockwise", "counterclockwise"):
            (root / f"{motion}_{turn}").mkdir()
            for number in range(4):
                write_video(root / f"{motion}_{turn}/{number}.mp4", 5)
    return root


def run(*arguments: object) -> int:
    return main(["prepare", *map(str, arguments)])


def trained(printed: str) -> Config:
    """The config of the command that was printed last."""
    program, train, config, *options = shlex.split(printed.strip().splitlines()[-1])
    assert (program, train) == ("ffn", "train")
    return load_config(find_config(config), options)


def test_the_printed_command_trains_with_the_index(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "index"

    assert run("folder", "--root", videos, "--output", output, "--workers", 0) == 0

    printed = capsys.readouterr().out
    assert re.search(r"train │ 12 +│ 12 +│ 4 of 4", printed)
    config = trained(printed)
    found = read_config_splits(config.data)
    assert (len(found.train), len(found.val), len(found.classes)) == (12, 4, 4)
    pairs = [[f"{name}_clockwise", f"{name}_counterclockwise"] for name in ("orbit", "spin")]
    for one in (config, load_config(output / "flip_pairs.yaml", [])):
        assert one.data.flip == "swap"
        assert [list(pair) for pair in one.data.flip_pairs] == pairs
    assert main(["prepare", "folder", "--root", str(videos), "--output", str(output)]) == 2
    assert "Replace it with --overwrite" in capsys.readouterr().err


def test_problems_are_shown_and_the_rest_is_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write_folder: Callable
) -> None:
    Layouts(tmp_path, None, write_folder).sthv1()

    assert run("sthv1", "--root", tmp_path, "--workers", 2) == 1

    printed = capsys.readouterr().out
    assert "1 missing, 1 unlisted, 1 unreadable" in printed
    assert len((tmp_path / "index/train.csv").read_text().splitlines()) == 8
    assert (tmp_path / "index/classes.txt").read_text().splitlines() == NAMES
    assert "\n  ffn train sthv1/tsm_r50 data.root=" in printed


def test_frames_with_names_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write_folder: Callable
) -> None:
    for split in ("train", "val"):
        write_folder(tmp_path / split / "run/a", 4, first=0, pattern="img_{:03d}.png")

    assert run("folder", "--root", tmp_path, "--pattern", "img_{:03d}.png", "--workers", 0) == 0

    config = trained(capsys.readouterr().out)
    assert config.data.frame_pattern == "img_{:03d}.png"
    assert read_config_splits(config.data).train[0].frames == 4


def test_copies(videos: Path, tmp_path: Path) -> None:
    arguments = ("folder", "--root", videos, "--workers", 0, "--output", tmp_path / "index")

    assert run(*arguments, "--reencode", tmp_path / "mp4", "--short-side", 20, "--gop", 5) == 0

    line = (tmp_path / "index/train.csv").read_text().splitlines()[1]
    path, *_, width, height = line.split(",")
    assert Path(path).is_relative_to(tmp_path / "mp4")
    assert (width, height) == ("26", "20")
    assert '"gop": 5' in (tmp_path / "mp4/derived.json").read_text()


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in (
        ("folder --val-fraction 0", "0 < fraction < 1"),
        ("folder --pattern frame.jpg", "frame.jpg"),
        ("k400", "Kinetics-400"),
        ("ucf102", "ucf101"),
        ("mine --imports no_such_package", "no_such_package"),
    ):
        assert run(*words.split(), "--root", tmp_path) == 2
        assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_data_set_has_a_config() -> None:
    assert {*CONFIGS, "folder"} == set(DATASETS)
    assert all(find_config(name).is_file() for name in (*CONFIGS.values(), OWN_CONFIG))
