from __future__ import annotations

import av
import numpy as np
import pytest
from tables import read_csv

from ffn.datasets import synthetic
from ffn.datasets.synthetic import CLASSES, draw, generate

SMALL = {"train_per_class": 2, "val_per_class": 1, "size": 16, "frames": 6}
ARGUMENTS = ("--clips-per-class", "2", "1", "--size=16", "--frames=6", "--seed=3")


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
    for split, per_class in (("train", 2), ("val", 1)):
        rows = read_csv(made / f"{split}.csv")
        assert [row["label"] for row in rows] == [c for c in CLASSES for _ in range(per_class)]
        assert {row["frames"] for row in rows} == {"6"}
        videos = made.glob(f"videos/{split}_*")
        assert sorted(made / row["path"] for row in rows) == sorted(videos)


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


def test_an_equal_data_set_is_kept_and_anything_else_refused(made, tmp_path, capsys):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    synthetic.main([str(made), *ARGUMENTS])
    assert "12 classes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="a data set of other parameters"):
        synthetic.main([str(made), *ARGUMENTS[:-1], "--seed=4"])
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds something else"):
        generate(tmp_path, **SMALL)
    (tmp_path / "notes.txt").unlink()
    assert contents(generate(tmp_path, seed=3, **SMALL)) == contents(made)  # it is empty


def test_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    def fail(path, *video):
        path.write_bytes(b"half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(synthetic, "_encode", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        generate(tmp_path / "motion", **SMALL)
    assert list(tmp_path.iterdir()) == []
