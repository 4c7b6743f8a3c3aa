"""``tools/prepare_data.py``: exit status, output, refused options, and ``--imports``."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

from preparation_layouts import NAMES, Layouts

from ffn.cli import COMMANDS, browse
from ffn.cli.prepare_data import DATASETS, _parser, main
from ffn.data import ClipStore
from ffn.datasets.synthetic import generate
from ffn.engine.build_data import read_config_splits
from ffn.engine.config import load_config


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few videos in a folder per class, of classes that a flip exchanges."""
    source = tmp_path_factory.mktemp("videos") / "motion"
    generate(source, train_per_class=4, val_per_class=1)
    root = source.parent / "set"
    for path in (source / "videos").glob("train_*_clockwise_*.mp4"):
        name = path.name.removeprefix("train_").rpartition("_")[0]
        for other in (name, name.replace("clockwise", "counterclockwise")):
            (root / other).mkdir(parents=True, exist_ok=True)
            (root / other / path.name).write_bytes(path.read_bytes())
    return root


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_listed_as_a_command() -> None:
    assert "prepare_data" in COMMANDS


def test_commands_of_the_docs_are_understood() -> None:
    text = (Path(__file__).parents[2] / "docs/data.md").read_text()
    commands = re.findall(r"^python tools/prepare_data\.py (.*)$", text, flags=re.MULTILINE)

    assert len(commands) >= 4
    for command in commands:
        assert _parser().parse_args(shlex.split(command)).root.startswith("/data/")
    assert all(f"`{name}`" in text for name in DATASETS)
    named = set(re.findall(r"`(--[a-z-]+)", text))
    actions = [*_parser()._actions, *browse._parser()._actions]
    assert named <= {option for action in actions for option in action.option_strings}


def test_clean_data_set(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The config reads the videos with the printed options."""
    output = tmp_path / "index"

    status = run("folder", "--root", videos, "--output", output, "--workers", 0)

    printed = capsys.readouterr().out
    assert status == 0
    assert re.search(r"train │ 12 +│ 12 +│ 0 +│ 0 +│ 12 +│ 4 of 4", printed)
    assert "orbit_clockwise <-> orbit_counterclockwise" in printed
    options = printed.strip().splitlines()[-1].split()
    assert [option.partition("=")[0] for option in options] == [
        "data.root",
        "data.train",
        "data.val",
        "data.classes",
    ]
    config = load_config(output / "flip_pairs.yaml", options)
    videos = read_config_splits(config.data)
    assert (len(videos.train), len(videos.val), len(videos.classes)) == (12, 4, 4)
    travels = videos.fingerprint()["prepared"]  # into checkpoints
    assert travels["videos"] == {"train": 12, "val": 4}
    assert travels["frames"] == {"train": {"32-63": 12}, "val": {"32-63": 4}}
    assert travels["classes"] == videos.classes
    assert config.data.flip.value == "swap"
    assert config.data.flip_pairs == [
        ["orbit_clockwise", "orbit_counterclockwise"],
        ["spin_clockwise", "spin_counterclockwise"],
    ]


def test_problems_are_shown_and_the_rest_is_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_frames(folder: Path, frames: int, *, size: tuple[int, int], first: int) -> None:
        folder.mkdir(parents=True)
        for number in range(first, first + frames):
            Image.new("RGB", size).save(folder / f"{number:05d}.jpg")

    Layouts(tmp_path, None, write_frames).sthv1()

    status = run("sthv1", "--root", tmp_path, "--workers", 2)

    printed = capsys.readouterr().out
    assert status == 1
    assert "problems (1 missing, 1 unlisted, 1 unreadable):" in printed
    assert "missing: train 9: something-something-v1-train.csv:9" in printed
    assert len((tmp_path / "index/train.csv").read_text().splitlines()) == 8
    assert (tmp_path / "index/classes.txt").read_text().splitlines() == NAMES

    assert run("sthv1", "--root", tmp_path) == 2
    assert "Replace it with --overwrite" in capsys.readouterr().err


def test_frames_with_names_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "val"):
        folder = tmp_path / split / "run" / "a"
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (20, 16)).save(folder / f"img_{number:03d}.png")

    assert run("folder", "--root", tmp_path, "--pattern", "img_{:03d}.png", "--workers", 0) == 0

    options = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    config = load_config(None, options)
    assert config.data.frame_pattern == "img_{:03d}.png"
    assert read_config_splits(config.data).train[0].frames == 4


def test_copies(videos: Path, tmp_path: Path) -> None:
    arguments = ("folder", "--root", videos, "--workers", 0, "--output", tmp_path / "index")

    assert run(*arguments, "--reencode", tmp_path / "mp4", "--short-side", 20, "--gop", 5) == 0

    line = (tmp_path / "index/train.csv").read_text().splitlines()[1]
    path, *_, width, height = line.split(",")
    assert Path(path).is_file()
    assert Path(path).is_relative_to(tmp_path / "mp4")
    assert (width, height) == ("20", "20")
    assert '"gop": 5' in (tmp_path / "mp4/derived.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["folder", "--gop", "5"], "--gop has no effect without --reencode"),
        (
            ["folder", "--quality", "5"],
            "--quality has no effect without --extract-frames or --pack",
        ),
        (
            ["folder", "--short-side", "5"],
            "--short-side has no effect without --extract-frames, --ree",
        ),
        (["folder", "--extract-frames", "a", "--reencode", "b"], "not allowed with"),
        (["folder", "--workers", "-1"], "--workers is -1"),
        *(
            (["folder", "--timeout", number], f"--timeout is {number}; expected more than 0 s and")
            for number in ("0", "nan", "inf", "1e+09")
        ),
        (["folder", "--timeout", "9", "--workers", "0"], "no effect with --workers 0"),
        (["ucf102"], "unknown data set 'ucf102'; did you mean ucf101? A custom data set"),
    ],
)
def test_options_that_are_refused(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments, "--root", tmp_path)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k400", "--root", "{}"], "no official list of Kinetics-400"),
        (["k400", "--root", "{}/none"], "is not a folder"),
        (["folder", "--root", "{}", "--val-fraction", "2"], "0 < fraction < 1"),
        (["folder", "--root", "{}", "--reencode", "x", "--gop", "0"], "gop is 0"),
        (["folder", "--root", "{}", "--pack", "{}/store", "--quality", "300"], "quality is 300"),
        (["folder", "--root", "{}", "--pattern", "frame.jpg"], "exactly one field for the number"),
    ],
)
def test_what_cannot_be_done(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(argument.format(tmp_path) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
    assert not (tmp_path / "store").exists()


def test_pack(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed options read the store; a video that does not decode completely is a problem."""
    root = tmp_path / "set"
    shutil.copytree(videos, root)
    broken = next(root.rglob("*.mp4"))
    data = bytearray(broken.read_bytes())
    start, stop = data.index(b"mdat") + 4, data.index(b"moov") - 4
    data[start + (stop - start) // 2 : stop] = bytes(stop - start - (stop - start) // 2)
    broken.write_bytes(data)

    command = ("folder", "--root", root, "--pack", root / "store", "--short-side", 16)
    assert run(*command, "--workers", 1) == 1

    shown = capsys.readouterr().out
    assert str(broken.relative_to(root)) in shown[shown.index("packing: ") :]
    options = shlex.split(shown.strip().splitlines()[-1])
    assert options[-2:] == ["data.format=store", "data.store=store"]
    videos = read_config_splits(load_config(None, options).data)
    store = ClipStore(root / "store", root=root)
    records = [*videos.train, *videos.val]
    assert len(records) == len(store) == len(list(root.rglob("*.mp4"))) - 1
    assert {tuple(store.open_record(r).read([0]).shape) for r in records} == {(1, 16, 16, 3)}


def test_a_store_beside_other_files_is_refused(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, also if an earlier version left a lock file."""
    root = tmp_path / "set"
    shutil.copytree(videos, root)
    for left in ([], ["pack.lock"]):
        for name in left:
            (root / name).touch()
        before = sorted(root.rglob("*"))

        assert run("folder", "--root", root, "--pack", root, "--workers", 0) == 2

        error = capsys.readouterr().err
        assert f"{root} holds orbit_clockwise, which is not part of a store; move it" in error
        assert sorted(root.rglob("*")) == before


def test_a_store_grows_and_names_files_that_were_replaced(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    shutil.copytree(videos, root)
    first, second, *_ = sorted(root.rglob("*.mp4"))
    added = first.with_name("added.mp4")
    command = ("folder", "--root", root, "--pack", root / "store", "--short-side", 16)
    assert run(*command) == 0
    clips = len(ClipStore(root / "store"))

    shutil.copy(first, added)
    generate(tmp_path / "longer", train_per_class=1, val_per_class=1, frames=60)
    shutil.copy(next((tmp_path / "longer").rglob("*.mp4")), second)
    assert run(*command, "--overwrite") == 1
    shown = capsys.readouterr().out
    store = ClipStore(root / "store")
    assert len(store) == clips + 1
    reason = f"{store.path} has an earlier version of it, of 40 frames; name a new folder"
    assert f"{second.relative_to(root)}: {reason}" in shown
    listed = (root / "index/train.csv").read_text() + (root / "index/val.csv").read_text()
    assert str(added.relative_to(root)) in listed
    assert str(second.relative_to(root)) not in listed
