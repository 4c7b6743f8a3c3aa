"""Runs whose lists or options change before they are resumed."""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_toys import read_log, train, train_until, write_videos
from PIL import Image

from ffn.data.video_list import ListedVideo, read_videos, videos_sha256
from ffn.data.video_list import write_videos as write_listed
from ffn.engine.checkpoints.file import load_checkpoint, save_checkpoint
from ffn.engine.checkpoints.lock import RunError

SAVE = "train.save_steps=1"
ALLOW = "data.allow_changes=true"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data/films").mkdir(parents=True)
    write_videos(tmp_path / "data")
    for path in (tmp_path / "data").glob("*.mp4"):
        path.rename(tmp_path / "data/films" / path.name)
    for name in ("train", "val"):
        rows = read_rows(tmp_path / "data", name)
        write_rows(tmp_path / "data", name, [[f"films/{path}", label] for path, label in rows])
    return tmp_path / "data"


def read_rows(folder: Path, name: str = "train") -> list[list[str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def write_rows(
    folder: Path, name: str, rows: list[list[str]], columns: tuple[str, ...] = ("path", "label")
) -> None:
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "last.pt")["model"]


def equal(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def with_times(folder: Path, ends: str) -> None:
    rows = [[*row, "0", ends if number == 3 else "0.9"] for number, row in enumerate(rows_0)]
    write_rows(folder, "train", rows, ("path", "label", "start", "end"))


rows_0 = [[f"films/train_{i}.mp4", ("left", "right", "still")[i % 3]] for i in range(24)]


def other_folder(folder: Path) -> None:
    """The same names in another folder."""
    shutil.copytree(folder / "films", folder / "new")
    rows = read_rows(folder)
    rows[3][0] = rows[3][0].replace("films", "new")
    write_rows(folder, "train", rows)


def other_film(folder: Path) -> None:
    with (folder / "films/train_3.mp4").open("ab") as file:
        file.write(bytes(100))


def other_validation(folder: Path) -> None:
    with (folder / "films/val_2.mp4").open("ab") as file:
        file.write(bytes(100))


def one_more(folder: Path) -> None:
    shutil.copy(folder / "films/train_3.mp4", folder / "films/new.mp4")
    write_rows(folder, "train", [*read_rows(folder), ["films/new.mp4", read_rows(folder)[0][1]]])


def other_order(folder: Path) -> None:
    write_rows(folder, "train", read_rows(folder)[::-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_folder, r"lists now: 1 new in the lists, first train new/train_3\.mp4; restore"),
        (
            other_film,
            r"1 with another file, first train films/train_3\.mp4 \(bytes (\d+) -> \d+\); s",
        ),
        (other_validation, r"1 with another file, first val films/val_2\.mp4 \(bytes \d+ -> \d+\)"),
        (one_more, r"now: 1 new in the lists, first train films/new\.mp4; restore the lists"),
        (other_order, "lists now: their order changed; restore"),
    ],
)
def test_changed_videos_are_refused_and_named(
    folder: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    train_until(3, folder, tmp_path / "run", SAVE)
    change(folder)

    more = (ALLOW,) if change in (other_folder, one_more) else ()
    with pytest.raises(RunError, match=message):
        train(folder, tmp_path / "run", SAVE, *more)


def test_changed_times_are_refused_and_named(folder: Path, tmp_path: Path) -> None:
    with_times(folder, "0.9")
    train_until(3, folder, tmp_path / "run", SAVE)
    with_times(folder, "0.5")

    with pytest.raises(RunError, match=r"1 changed, first train .*_3\.mp4 .* \(end 0\.9 -> 0\.5\)"):
        train(folder, tmp_path / "run", SAVE)


def test_moved_videos_go_on(folder: Path, tmp_path: Path) -> None:
    train_until(3, folder, tmp_path / "run", SAVE)
    folder.rename(tmp_path / "moved")

    train(tmp_path / "moved", tmp_path / "run", SAVE)


def into_class_folders(folder: Path) -> tuple[str, str]:
    for name in ("train", "val"):
        for path, label in read_rows(folder, name):
            (folder / name / label).mkdir(parents=True, exist_ok=True)
            (folder / path).rename(folder / name / label / Path(path).name)
        (folder / f"{name}.csv").unlink()
    return "data.train=train", "data.val=val"


def test_moved_class_folders_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the root is a relative or an absolute path."""
    monkeypatch.chdir(tmp_path)
    options = into_class_folders(folder)
    train_until(3, Path("data"), tmp_path / "run", SAVE, *options)
    folder.rename(tmp_path / "moved")
    train_until(5, Path("moved"), tmp_path / "run", SAVE, *options)

    train(tmp_path / "moved", tmp_path / "run", SAVE, *options)
    listed = read_videos(tmp_path / "run/videos.csv.gz")
    assert listed[0].path == "train/left/train_0.mp4"


def as_version_0_2(run: Path, rewrite: Callable[[ListedVideo], ListedVideo]) -> None:
    """Rewrite the list of a run, and its hash in the checkpoints."""
    listed = [rewrite(video) for video in read_videos(run / "videos.csv.gz")]
    write_listed(run / "videos.csv.gz", listed)
    for path in [run / "last.pt", *(run / "checkpoints").iterdir()]:
        content = load_checkpoint(path)
        content["meta"]["data"]["videos_sha256"] = videos_sha256(listed)
        save_checkpoint(path, content)


@pytest.mark.parametrize("removed", [0, 1])
def test_class_folders_of_an_earlier_version_go_on(
    removed: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a relative root, version 0.2 listed class folders with absolute paths."""
    monkeypatch.chdir(tmp_path)
    options = (SAVE, *into_class_folders(folder))
    train_until(3, Path("data"), tmp_path / "run", *options)
    as_version_0_2(tmp_path / "run", lambda v: v._replace(path=str(folder / v.path)))
    if removed:
        (folder / "train/left/train_3.mp4").unlink()
        with pytest.raises(RunError, match=r": 1 missing from .* train/left/train_3.mp4; set data"):
            train(Path("data"), tmp_path / "run", *options)
        options = (*options, ALLOW)
    train_until(5, Path("data"), tmp_path / "run", *options)
    train(Path("data"), tmp_path / "run", *options)


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8")
def test_names_that_are_not_utf8(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A good video, an unreadable one, and one in both lists; the unreadable one is named."""
    good, bad, class_name = (os.fsdecode(name) for name in (b"\xff\xe9.mp4", b"\xe9.mp4", b"\xfc"))
    options = (*into_class_folders(folder), "data.on_error=skip")
    (folder / "train/left/train_0.mp4").rename(folder / "train/left" / good)
    (folder / "train/left" / bad).write_bytes(b"no video")
    (folder / "val/left/val_0.mp4").unlink()
    (folder / "val/left/val_0.mp4").symlink_to(folder / "train/left" / good)
    for name in ("train", "val"):
        (folder / name / "still").rename(folder / name / class_name)

    train_until(3, folder, tmp_path / "run", SAVE, *options)
    train(folder, tmp_path / "run", SAVE, *options)

    assert r"train/left/\udce9.mp4" in capsys.readouterr().out
    assert os.fsencode(bad) in (tmp_path / "run/unreadable.txt").read_bytes()
    assert f"train/left/{good}" in [v.path for v in read_videos(tmp_path / "run/videos.csv.gz")]


FRAMES = "data.frame_pattern='{:05d}.png'"


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Folders of 8 frames whose files differ in length."""
    rng = np.random.default_rng(0)
    for name, number in (("train", 24), ("val", 9)):
        for i in range(number):
            video = tmp_path / f"frames/{name}_{i}"
            video.mkdir(parents=True)
            for t in range(8):
                pixels = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
                pixels[: rng.integers(0, 16)] = 0
                Image.fromarray(pixels).save(video / f"{t + 1:05d}.png")
        rows = [[f"frames/{name}_{i}", rows_0[i % 3][1]] for i in range(number)]
        write_rows(tmp_path, name, rows)
    return tmp_path


def of_another_video(frames: Path) -> None:
    shutil.rmtree(frames / "train_3")
    shutil.copytree(frames / "train_4", frames / "train_3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_video, r"\(8 files, (\d+) bytes in 3 of them -> 8 files, (?!\1)\d+ bytes in 3"),
        (lambda frames: (frames / "train_3/00008.png").unlink(), r"\(8 files, .* -> 7 files, "),
        (
            lambda frames: shutil.copy(frames / "train_4/00002.png", frames / "train_3/00009.png"),
            r"\(8 files, .* -> 9 files, ",
        ),
    ],
    ids=["another video", "one less", "one more"],
)
@pytest.mark.parametrize("is_earlier", [False, True])
def test_changed_folders_of_frames_are_refused_and_named(
    is_earlier: bool, frames: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    train_until(1, frames, tmp_path / "run", SAVE, FRAMES)
    if is_earlier:  # its list has no content of folders; it gets one when the run goes on
        as_version_0_2(tmp_path / "run", lambda v: v._replace(content=""))
        train_until(2, frames, tmp_path / "run", SAVE, FRAMES)
    change(frames / "frames")

    first = r": 1 with other frames, first train frames/train_3 "
    with pytest.raises(RunError, match=f"{first}{message}.*; set data.allow_changes=true"):
        train(frames, tmp_path / "run", SAVE, FRAMES)
    (frames / "frames/train_4/.hidden").touch()
    train_until(3, frames, tmp_path / "run", SAVE, FRAMES, ALLOW)


def test_removed_videos_count_as_unreadable(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The run equals one in which they are unreadable all the time."""
    rows = read_rows(folder)
    removed = [rows[5], rows[11]]
    content = {row[0]: (folder / row[0]).read_bytes() for row in removed}
    for row in removed:
        (folder / row[0]).write_bytes(b"x" * len(content[row[0]]))
    expected = train(folder, tmp_path / "whole", "data.on_error=skip")
    train_until(3, folder, tmp_path / "run", SAVE, "data.on_error=skip")
    for row in removed:
        (folder / row[0]).unlink()
    write_rows(folder, "train", [row for row in rows if row not in removed])
    write_rows(folder, "val", read_rows(folder, "val")[1:])

    with pytest.raises(RunError, match=r"3 missing from .*set data\.allow_changes=true to go on"):
        train(folder, tmp_path / "run", SAVE)
    capsys.readouterr()
    train(folder, tmp_path / "run", SAVE, ALLOW)

    shown = capsys.readouterr().out
    assert "3 videos were taken out of the lists since the run began, first train films/" in shown
    assert "taken out of the list" in shown
    assert equal(tmp_path / "run", expected)
    metrics = load_checkpoint(tmp_path / "run/last.pt")["meta"]["metrics"]
    assert metrics["4"]["failed"] == 0


def test_unreadable_videos_are_skipped_from_the_resume_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "films/train_5.mp4").write_bytes(b"no video")
    with pytest.raises(RuntimeError, match=r"train_5\.mp4"):
        train(folder, tmp_path / "run", SAVE)
    train(folder, tmp_path / "run", SAVE, "data.on_error=skip")

    assert "data.on_error is now skip" in capsys.readouterr().out
    assert equal(tmp_path / "run", train(folder, tmp_path / "whole", "data.on_error=skip"))


def test_a_repaired_video_goes_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    film = folder / "films/train_5.mp4"
    good = film.read_bytes()
    film.write_bytes(good[:500])
    with pytest.raises(RuntimeError, match=r"train_5\.mp4"):
        train(folder, tmp_path / "run", SAVE)
    assert (tmp_path / "run/last.pt").exists()
    film.write_bytes(good)

    with pytest.raises(RunError, match=r"1 with another file.*set data\.allow_changes=true"):
        train(folder, tmp_path / "run", SAVE)
    train(folder, tmp_path / "run", SAVE, ALLOW)
    assert "1 files were replaced since the run began, first films/" in capsys.readouterr().out
    assert equal(tmp_path / "run", train(folder, tmp_path / "whole"))


def test_a_run_of_an_earlier_version_goes_on(folder: Path, tmp_path: Path) -> None:
    """Its checkpoints have a hash of names and labels only, and its folder no list."""
    train_until(3, folder, tmp_path / "run", SAVE)
    for path in [tmp_path / "run/last.pt", *(tmp_path / "run/checkpoints").iterdir()]:
        content = load_checkpoint(path)
        del content["meta"]["data"]["videos_sha256"]
        save_checkpoint(path, content)
    (tmp_path / "run/videos.csv.gz").unlink()

    train(folder, tmp_path / "run", SAVE)
    listed = read_videos(tmp_path / "run/videos.csv.gz")
    assert [(v.split, v.path) for v in listed[:2]] == [("train", row[0]) for row in rows_0[:2]]
    assert len(listed) == 33
    assert int(listed[0].content) == (folder / rows_0[0][0]).stat().st_size


def test_more_epochs_than_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The first two epochs are those of the shorter run; the third has the rates of the longer."""
    cosine = "optim.schedule=cosine"
    train(folder, tmp_path / "run", cosine)
    first = weights(tmp_path / "run")
    capsys.readouterr()
    train(folder, tmp_path / "run", cosine, "train.epochs=3")
    shown = capsys.readouterr().out
    train(folder, tmp_path / "three", cosine, "train.epochs=3")

    rates = [[e["lr"] for e in read_log(tmp_path / name)] for name in ("run", "three")]
    assert len(rates[0]) == len(rates[1]) == 12
    assert rates[0][8:] == rates[1][8:]
    assert rates[0][7] < rates[1][7]
    told = re.search(r"epochs 2 -> 3: .* of 3 epochs from here, (\S+) in place of (\S+)\n", shown)
    assert float(told[1]) == pytest.approx(rates[1][8], rel=0.01)
    assert float(told[2]) < rates[0][7]
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["epoch"] == 3
    assert any(
        not torch.equal(first[key], value) for key, value in weights(tmp_path / "run").items()
    )
    with pytest.raises(RunError, match=r"train\.epochs 3 -> 2"):
        train(folder, tmp_path / "run", cosine)
