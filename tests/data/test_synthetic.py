from __future__ import annotations

import csv
import sys

import numpy as np
import pytest

from ffn.data import synthetic
from ffn.data.synthetic import CLASSES, draw, generate

av = pytest.importorskip("av")

SMALL = {"train_per_class": 2, "val_per_class": 1, "size": 16, "frames": 6}
COUNTS = {
    "sway_three_times": 3,
    "sway_five_times": 5,
    "pulse_once": 1,
    "pulse_three_times": 3,
}


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("made") / "motion", seed=3, **SMALL)


def test_lists_every_film_with_its_class_name_and_number_of_frames(made):
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


def test_films_are_h264_and_decode_to_what_was_drawn(made):
    with av.open(str(made / "videos/train_sway_five_times_0001.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        film = np.stack([image.to_ndarray(format="rgb24") for image in container.decode(stream)])
    rng = np.random.default_rng([3, 0, CLASSES.index("sway_five_times"), 1])
    drawn = draw("sway_five_times", size=16, frames=6, rng=rng)
    assert film.shape == drawn.shape == (6, 16, 16, 3)
    error = np.abs(film.astype(int) - drawn)
    assert error.mean() < 12  # lossy, and colour at half resolution
    assert error.mean() < np.abs(film[::-1].astype(int) - drawn).mean() / 1.2


def test_the_same_film_is_encoded_to_the_same_bytes(tmp_path):
    # At full size: x264's rate control, which is switched off, showed its differences only there.
    for seed in range(6):
        film = draw("sway_five_times", size=36, frames=40, rng=np.random.default_rng(seed))
        for index in range(5):
            synthetic._encode(tmp_path / f"{index}.mp4", film)
        assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_workers_do_not_change_a_byte(made, tmp_path):
    again = generate(tmp_path / "motion", seed=3, workers=2, **SMALL)
    assert contents(again) == contents(made)


def test_more_films_keep_the_first_ones_and_another_seed_changes_them(made, tmp_path):
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
    with pytest.raises(FileExistsError, match="holds no generated data set"):
        generate(tmp_path, **SMALL)
    assert contents(tmp_path) == {"notes.txt": b"mine"}


def test_refuses_a_damaged_data_set(tmp_path):
    folder = generate(tmp_path / "motion", **SMALL)
    (folder / "videos/val_pulse_three_times_0000.mp4").unlink()
    with pytest.raises(FileExistsError, match="damaged"):
        generate(folder, **SMALL)


def test_leaves_nothing_behind_when_it_fails(tmp_path, monkeypatch):
    def fail(path, film):
        path.write_bytes(b"half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(synthetic, "_encode", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        generate(tmp_path / "motion", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_without_pyav_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ModuleNotFoundError, match=r"frame-flexible\[video\]"):
        generate(tmp_path / "motion", **SMALL)


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
    arguments = ["--clips-per-class", "2", "1", "--size", "16", "--frames", "6", "--seed", "3"]
    synthetic.main([str(tmp_path / "motion"), *arguments, "--workers", "0"])
    assert contents(tmp_path / "motion") == contents(made)
    assert "12 classes, 2 + 1 films each" in capsys.readouterr().out

    with pytest.raises(SystemExit):
        synthetic.main([str(tmp_path / "motion"), *arguments, "--seed", "4"])
    assert "holds a data set made with" in capsys.readouterr().err


def test_refuses_an_unknown_class():
    with pytest.raises(ValueError, match="unknown class 'jump'"):
        draw("jump", size=16, frames=2, rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", CLASSES)
def test_every_pose_of_every_frame_is_uniform(name):
    # A start that is uniform on the circle stays uniform whatever a class adds, unless it looks at
    # the start: the first circular moment of 2000 films is then below 4/sqrt(2000).
    time = (np.arange(8) + 0.5) / 8
    poses = [synthetic._poses(name, time, np.random.default_rng([7, i])) for i in range(2000)]
    for key in ("x", "y", "heading", "size"):
        turns = np.stack([np.broadcast_to(pose[key], 8) for pose in poses])
        assert np.abs(np.exp(2j * np.pi * turns).mean(axis=0)).max() < 4 / np.sqrt(2000)


def test_clockwise_motions_turn_clockwise_on_the_screen():
    time = np.linspace(0, 1, 200)
    for name, sign in (("orbit_clockwise", 1), ("orbit_counterclockwise", -1)):
        offsets = synthetic.MOTIONS[name](time, np.random.default_rng(0))
        x, y = offsets["x"], offsets["y"]  # y points down
        turning = x[:-1] * np.diff(y) - y[:-1] * np.diff(x)
        assert (sign * turning > 0).all()
    spin = synthetic.MOTIONS["spin_clockwise"](time, np.random.default_rng(0))["heading"]
    assert (np.diff(spin) > 0).all()


@pytest.mark.parametrize(("turns", "axis"), [(0.0, "x"), (0.25, "y")])
def test_heading_turns_from_right_to_down(turns, axis):
    y, x = np.mgrid[:36, :36].astype(np.float32)[:, None] + 0.5
    pose = {key: np.array([0.5]) for key in ("x", "y", "size")} | {"heading": np.array([turns])}
    cover = synthetic._dart((x, y), pose, 36)
    mean = {"x": (cover * x).sum() / cover.sum(), "y": (cover * y).sum() / cover.sum()}
    other = {"x": "y", "y": "x"}[axis]
    assert mean[axis] < 16.5  # the wide end is behind, so the tip shows right or down
    assert mean[other] == pytest.approx(18, abs=1e-3)


@pytest.mark.parametrize(("name", "cycles"), COUNTS.items())
def test_counts_look_alike_at_few_frames_and_differ_at_sixteen(name, cycles):
    def strongest_frequencies(frames):
        time = (np.arange(frames) + 0.5) / frames
        found = []
        for seed in range(20):
            offsets = synthetic.MOTIONS[name](time, np.random.default_rng(seed))
            turns = offsets.get("size")
            wave = offsets["x"] if turns is None else np.cos(2 * np.pi * (turns + 0.1))
            found.append(1 + np.abs(np.fft.rfft(wave))[1:].argmax())
        return found

    assert set(strongest_frequencies(16)) == {cycles}
    assert strongest_frequencies(8).count(min(cycles, 8 - cycles)) >= 15  # 3 and 5 are one
    assert strongest_frequencies(4).count(1) >= 15  # 1, 3 and 5 are one


def test_the_decoy_makes_the_motion_of_any_class(monkeypatch):
    names, poses = [], synthetic._poses
    monkeypatch.setattr(
        synthetic, "_poses", lambda name, *given: names.append(name) or poses(name, *given)
    )
    for seed in range(100):
        draw("sway_five_times", size=16, frames=1, rng=np.random.default_rng(seed))
    subjects, decoys = names[::2], names[1::2]
    assert set(subjects) == {"sway_five_times"}
    assert set(decoys) == set(CLASSES)


def test_in_a_third_of_the_films_the_decoy_looks_like_the_subject():
    films = 300
    blue = 0
    for seed in range(films):
        film = draw("sway_five_times", size=28, frames=4, rng=np.random.default_rng(seed))
        blue += (film[..., 2].astype(int) - film[..., 0] > 35).sum() > 20
    share = 1 - blue / films
    assert abs(share - 1 / 3) < 3 * np.sqrt(2 / 9 / films)
