from __future__ import annotations

import csv

import av
import numpy as np
import pytest

from ffn.datasets import synthetic
from ffn.datasets.synthetic import CLASSES, draw, generate

SMALL = {"train_per_class": 2, "val_per_class": 1, "size": 16, "frames": 6}
ARGUMENTS = ("--clips-per-class", "2", "1", "--size", "16", "--frames", "6", "--seed", "3")


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("made") / "motion", seed=3, **SMALL)


def test_lists_every_video_with_its_class_name_and_number_of_frames(made):
    assert (made / "classes.txt").read_text().split() == list(CLASSES)
    listed = []
    for split, per_class in (("train", 2), ("val", 1)):
        with open(made / f"{split}.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["label"] for row in rows] == [c for c in CLASSES for _ in range(per_class)]
        assert {row["frames"] for row in rows} == {"6"}
        listed += [row["path"] for row in rows]
    videos = [str(path.relative_to(made)) for path in (made / "videos").iterdir()]
    assert sorted(listed) == sorted(videos)


def test_videos_are_h264_and_decode_to_what_was_drawn(made):
    with av.open(str(made / "videos/train_sway_five_times_0001.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        video = np.stack([image.to_ndarray(format="rgb24") for image in container.decode(stream)])
    rng = np.random.default_rng([3, 0, CLASSES.index("sway_five_times"), 1])
    drawn = draw("sway_five_times", size=16, frames=6, rng=rng)
    assert video.shape == drawn.shape == (6, 16, 16, 3)
    error = np.abs(video.astype(int) - drawn)
    assert error.mean() < 12  # lossy, and color at half resolution
    assert error.mean() < np.abs(video[::-1].astype(int) - drawn).mean() / 1.2


def test_the_same_video_is_encoded_to_the_same_bytes(tmp_path):
    # At full size: x264's rate control, which is switched off, showed its differences only there.
    for seed in range(6):
        video = draw("sway_five_times", size=36, frames=40, rng=np.random.default_rng(seed))
        for index in range(5):
            synthetic._encode(tmp_path / f"{index}.mp4", video)
        assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_workers_do_not_change_a_byte(made, tmp_path):
    again = generate(tmp_path / "motion", seed=3, workers=2, **SMALL)
    assert contents(again) == contents(made)


def test_more_videos_keep_the_first_ones_and_another_seed_changes_them(made, tmp_path):
    more = generate(tmp_path / "more", seed=3, **{**SMALL, "train_per_class": 3})
    other = generate(tmp_path / "other", seed=4, **SMALL)
    first, larger, others = contents(made), contents(more), contents(other)
    videos = {name for name in first if name.endswith(".mp4")}
    assert all(larger[name] == first[name] for name in videos)
    assert all(others[name] != first[name] for name in videos)


def test_reuses_the_same_data_set_without_writing(made):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    generate(made, seed=3, **SMALL)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_refuses_a_folder_of_another_data_set(made):
    before = contents(made)
    with pytest.raises(FileExistsError, match=r"'seed': 3.*'seed': 5"):
        generate(made, seed=5, **SMALL)
    assert contents(made) == before


def test_refuses_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="does not hold a generated data set"):
        generate(tmp_path, **SMALL)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_refuses_a_damaged_data_set(tmp_path):
    folder = generate(tmp_path / "motion", **SMALL)
    (folder / "videos/val_pulse_three_times_0000.mp4").unlink()
    with pytest.raises(FileExistsError, match="damaged"):
        generate(folder, **SMALL)


def test_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    def fail(path, video):
        path.write_bytes(b"half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(synthetic, "_encode", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        generate(tmp_path / "motion", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled(made, tmp_path, monkeypatch, capsys):
    """As the working folder, or one where a disk is mounted: it cannot be replaced."""
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    (tmp_path / ".partial-1").mkdir()  # left by a killed process

    synthetic.main([".", *ARGUMENTS, "--workers", "0"])

    (tmp_path / ".partial-1").rmdir()
    assert contents(tmp_path) == contents(made)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in made.iterdir()
    )
    assert tmp_path.stat().st_ino == inode
    assert "12 classes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 17}, "size is 17; H.264 needs an even"),
        ({"frames": 0}, "frames is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_refuses_parameters_out_of_range(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        generate(tmp_path / "motion", **{**SMALL, **change})


def test_command_line_makes_the_same_data_set_and_explains_a_refusal(made, tmp_path, capsys):
    synthetic.main([str(tmp_path / "motion"), *ARGUMENTS, "--workers", "0"])
    assert contents(tmp_path / "motion") == contents(made)
    assert "12 classes, 2 + 1 videos each" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        synthetic.main([str(tmp_path / "motion"), *ARGUMENTS, "--seed", "4"])
    assert "holds a data set made with" in capsys.readouterr().err

    with pytest.raises(SystemExit):
        synthetic.main([str(tmp_path / "motion/train.csv/below"), *ARGUMENTS])
    assert "train.csv" in (error := capsys.readouterr().err)
    assert "a part of this path is a file" in error
