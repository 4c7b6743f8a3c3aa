"""``tools/crossvalidate.py`` and ``tools/compare.py``: results, continuation, errors.

In the quick tests a stand-in writes the predictions of the trainings. The slow ones train.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))  # for `engine_toys`

from engine_toys import CLASSES, write_videos

from ffn.cli import compare
from ffn.cli.crossvalidate import main
from ffn.data import read_annotations
from ffn.engine.build_data import read_config_splits
from ffn.engine.config import load_config
from ffn.engine.jobs import Job, JobError
from ffn.engine.options import Config
from ffn.engine.signals import StoppedError
from ffn.evaluation import Predictions, Sweep, load_predictions, load_table, save_predictions

ROOT = Path(__file__).parents[2]
CONFIG = """\
model: {{name: tsm_tiny, dropout: 0.0}}
task: {{frames: [2, 4]}}
data: {{root: {root}, crop: 16, resize: 20, test_frames: [2, 3], workers: 0}}
train: {{epochs: 1, batch_size: 6}}
log: {{wandb: disabled}}
"""
CLIPS, GROUPS = 24, 8  # three clips of different classes per group


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with empty video files, their annotations and a config."""
    root = tmp_path / "data"
    root.mkdir()
    for i in range(CLIPS):
        (root / f"{i}.mp4").touch()
    write_annotations(root, [f"{i}.mp4" for i in range(CLIPS)])
    return root


def write_annotations(root: Path, paths: list[str]) -> None:
    rows = [(p, CLASSES[i % 3], f"scene {i // 3}", "abc"[i // 12]) for i, p in enumerate(paths)]
    with (root / "clips.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "scene", "set"), *rows])
    (root / "config.yaml").write_text(CONFIG.format(root=root))


def arguments(root: Path, *more: str, output: str = "cv") -> list[str]:
    given = [str(root / "config.yaml"), *more]
    given += ["--annotations", str(root / "clips.csv"), "--group", "scene", "--folds", "2"]
    return [*given, "--output", str(root.parent / output)]


class Trainings:
    """Stand-in for `run_jobs`: writes the predictions that the commands of a job would write.

    A clip i is right if i mod 4 >= `wrong` at more than 2 frames, else if i is even. Shuffled clips
    are the same, except at 4 frames, where all are wrong. A wrong clip has the next class.
    """

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.commands: list[list[str]] = []
        self.configs: list[Config] = []
        self.stop_after: int | None = None
        self.wrong = 1

    def __call__(
        self, jobs: list[Job], *, parallel: int, on_end: Callable[[Job, float], None], **_: object
    ) -> None:
        for number, job in enumerate(jobs):
            if number == self.stop_after:
                raise StoppedError("stopped")
            self.jobs.append(job.name)
            for command in job.commands:
                self.run(command[command.index("-c") + 2 :])
            on_end(job, 1.0)

    def run(self, command: list[str]) -> None:
        self.commands.append(command)
        name, config, *options = command
        loaded = load_config(config)
        if name == "train":
            self.configs.append(loaded)
            Path(loaded.log.output).mkdir(parents=True, exist_ok=True)
            (Path(loaded.log.output) / "last.pt").touch()
            return
        splits = read_config_splits(loaded.data, with_train=False)
        shuffled = "--shuffle-frames" in options
        label = torch.tensor([record.label for record in splits.val])
        number = torch.tensor([int(Path(record.path).stem) for record in splits.val])
        logits = {}
        for frames in map(int, options[options.index("--frames") + 1 :]):
            right = number % 4 >= self.wrong if frames > 2 else number % 2 == 0
            right &= not (shuffled and frames == 4)
            classes = torch.eye(len(splits.classes))
            predicted = torch.where(right, label, (label + 1) % len(classes))
            logits[frames] = 2 * classes[predicted] + classes[label]
        paths = tuple(record.path for record in splits.val)
        predictions = Predictions(paths, label, torch.ones_like(label, dtype=torch.bool), logits)
        kept = Sweep("fold/last", None, 0, (16, 16), (), (), {}, predictions=predictions)
        output = Path(options[options.index("--output") + 1])
        save_predictions(kept, output / "fold_last.predictions.safetensors")


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    trainings = Trainings()
    monkeypatch.setattr("ffn.engine.jobs.run_jobs", trainings)
    return trainings


def results(root: Path, output: str = "cv") -> dict:
    return json.loads((root.parent / output / "results.json").read_text())


def test_every_clip_is_tested_once_by_a_network_that_was_not_trained_on_it(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(root, "train.epochs=3"), "--seeds", "0", "5"]) == 0

    assert trainings.jobs == [f"seed {seed}, fold {fold}" for seed in (0, 5) for fold in (0, 1)]
    tested = []
    for config in trainings.configs:
        splits = read_config_splits(config.data)
        groups = [
            {int(Path(r.path).stem) // 3 for r in part} for part in (splits.train, splits.val)
        ]
        assert not groups[0] & groups[1]
        assert groups[0] | groups[1] == set(range(GROUPS))
        assert splits.classes == sorted(CLASSES)
        assert config.train.epochs == 3
        tested += [(config.train.seed, record.path) for record in splits.val]
    every = [(seed, f"{root}/{i}.mp4") for seed in (0, 5) for i in range(CLIPS)]
    assert sorted(tested) == sorted(every)

    train, test = trainings.commands[:2]
    run = root.parent / "cv/seed_0/fold_0"
    assert train == ["train", str(run.with_suffix(".yaml"))]
    assert test[:4] == ["test", train[1], "--weights", str(run / "last.pt")]
    assert test[4:] == [
        *("--output", str(run / "test"), "--save-predictions", "--no-latency"),
        "--overwrite",
        *("--frames", "2", "3", "4"),
    ]

    found = results(root)
    assert found["format"] == 1
    assert [row["top1"]["mean"] for row in found["rows"]] == [50.0, 75.0, 75.0]
    assert found["rows"][0]["top1"]["per_seed"] == [50.0, 50.0]
    assert (found["clips"], found["groups"], found["seeds"]) == (24, 8, [0, 5])
    assert found["config"]["train"]["epochs"] == 3
    assert found["trained_frames"] == [2, 4]
    assert (found["group_column"], found["fold_seed"]) == ("scene", 0)
    assert {"python", "torch", "timm"} <= set(found["versions"])
    assert len(found["fingerprint"]) == 64
    screen = capsys.readouterr().out
    assert (
        "24 clips of 3 classes in 8 groups; clips (groups) of the folds: 12 (4), 12 (4)" in screen
    )
    assert "[4/4] seed 5, fold 1: top-1 2f 50.0, 3f 75.0, 4f 75.0; 1 s" in screen
    assert str(root.parent / "cv/results.json") in screen

    for seed in (0, 5):
        joined = load_predictions(root.parent / f"cv/seed_{seed}.predictions.safetensors")
        assert (joined.name, joined.protocol) == (f"cv.s{seed}", "1x1")
        assert sorted(joined.paths) == sorted(f"{i}.mp4" for i in range(CLIPS))
        for row in found["rows"]:
            right = joined.answers(row["frames"])[0] == joined.label
            assert 100 * right.double().mean() == row["top1"]["per_seed"][(0, 5).index(seed)]


def test_shuffled_frames_and_class_groups(root: Path, trainings: Trainings) -> None:
    """Of the pair, a wrong "left" is called "right"; a wrong "right" is still right."""
    more = ["--frames", "4", "--shuffled", "--class-groups", "left, right"]
    assert main([*arguments(root), *more]) == 0

    assert "--shuffle-frames" not in trainings.commands[1]
    assert "--shuffle-frames" in trainings.commands[2]
    assert trainings.commands[2][5].endswith("fold_0/test_shuffled")
    (row,) = results(root)["rows"]
    assert (row["top1"]["mean"], row["top1_shuffled"]["mean"]) == (75.0, 0.0)
    assert row["order"]["mean"] == 75.0
    # Clips 0 and 12 of the class "left" are wrong.
    assert row["class_groups"]["mean"] == pytest.approx(100 * 14 / 16)
    assert row["class_groups_shuffled"]["mean"] == pytest.approx(50)
    assert results(root)["class_groups"]["clips"] == 16


def test_a_finished_one_is_not_trained_again(root: Path, trainings: Trainings) -> None:
    assert main(arguments(root)) == 0
    first = results(root)
    trainings.jobs.clear()

    assert main(arguments(root)) == 0
    assert trainings.jobs == []
    assert results(root) == first

    assert main([*arguments(root), "--seeds", "0", "1"]) == 0
    assert trainings.jobs == ["seed 1, fold 0", "seed 1, fold 1"]
    assert results(root)["seeds"] == [0, 1]


def test_tests_are_added_to_a_finished_one(root: Path, trainings: Trainings) -> None:
    assert main(arguments(root)) == 0
    trainings.commands.clear()

    assert main([*arguments(root), "--frames", "2", "9"]) == 0
    assert [row["frames"] for row in results(root)["rows"]] == [2, 3, 4, 9]
    assert main([*arguments(root), "--frames", "2", "9", "--shuffled"]) == 0
    assert [row["frames"] for row in results(root)["rows"]] == [2, 3, 4, 9]
    tests = [command for command in trainings.commands if command[0] == "test"]
    assert ["--shuffle-frames" in test for test in tests] == [False, False, True, True]


def test_later_seeds_keep_earlier_ones_and_their_measures(root: Path, trainings: Trainings) -> None:
    more = ["--shuffled", "--class-groups", ",".join(CLASSES[:2])]
    assert main([*arguments(root), "--frames", "2", "4", *more]) == 0
    assert main([*arguments(root), "--seeds", "7", "--frames", "2"]) == 0

    found = results(root)
    assert found["seeds"] == [7, 0]
    assert [row["frames"] for row in found["rows"]] == [2, 4]
    assert all({"top1", "top1_shuffled", "class_groups"} <= {*row} for row in found["rows"])
    assert all(len(row["top1_shuffled"]["per_seed"]) == 2 for row in found["rows"])
    assert found["class_groups"]["groups"] == [[*CLASSES[:2]]]


def test_all_counts_of_ranges_are_trained_ones(root: Path, trainings: Trainings) -> None:
    ranges = ["task.frames=[2,4]", "task.ranges=[[1,2],[4,6]]"]
    assert main([*arguments(root, *ranges), "--frames", "1", "2", "3", "4", "5"]) == 0
    assert results(root)["trained_frames"] == [1, 2, 4, 5, 6]


def test_a_stopped_one_continues(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings.stop_after = 3
    given = [*arguments(root), "--seeds", "0", "1"]
    assert main(given) == 75
    assert "stopped; the same command continues" in capsys.readouterr().err
    assert compare.main([str(root.parent / "cv")]) == 2
    assert "has no results.json; run ffn crossvalidate" in capsys.readouterr().err

    trainings.stop_after = None
    assert main(given) == 0
    assert trainings.jobs[3:] == ["seed 1, fold 1"]
    assert "4 trainings, 1 at a time; 3 are finished" in capsys.readouterr().out


def test_damaged_predictions_are_tested_again(root: Path, trainings: Trainings) -> None:
    assert main(arguments(root)) == 0
    (file,) = (root.parent / "cv/seed_0/fold_1/test").iterdir()
    file.write_bytes(file.read_bytes()[:40])
    trainings.jobs.clear()

    assert main(arguments(root)) == 0
    assert trainings.jobs == ["seed 0, fold 1"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["optim.lr=0.5"], "optim.lr 0.01 -> 0.5"),
        (["train.epochs=3"], "train.epochs 1 -> 3"),
        (["train.grad_accum_steps=2"], "train.grad_accum_steps 1 -> 2"),
        (["--folds", "3"], "folds 2 -> 3"),
        (["--fold-seed", "9"], "fold_seed 0 -> 9"),
        (["--where", "set=a"], "clips, labels or groups of the annotations, 24 -> 12 clips"),
    ],
)
def test_other_options_or_clips_are_refused(
    root: Path,
    trainings: Trainings,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert main(arguments(root)) == 0
    before = results(root)

    positional = [text for text in more if text.startswith(("optim", "train"))]
    options = [text for text in more if text not in positional]
    assert main([*arguments(root, *positional), *options]) == 2

    error = capsys.readouterr().err
    assert "belongs to a cross-validation with other options or clips" in error
    assert message in error
    assert "Use another --output" in error
    assert results(root) == before


def test_options_that_change_no_result_may_change(root: Path, trainings: Trainings) -> None:
    assert main(arguments(root)) == 0
    lines = (root / "clips.csv").read_text().splitlines(keepends=True)
    (root / "clips.csv").write_text("".join([lines[0], *reversed(lines[1:])]))
    trainings.jobs.clear()
    assert main([*arguments(root, "data.workers=1"), "--jobs", "2"]) == 0
    assert not trainings.jobs
    assert results(root)["config"]["data"]["workers"] == 0  # of the trainings


def test_before_the_first_training_everything_may_change(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings.stop_after = 0
    assert main([*arguments(root, "optim.lr=0.5"), "--folds", "4"]) == 75
    assert (root.parent / "cv/folds/fold_3").exists()

    trainings.stop_after = None
    assert main(arguments(root)) == 0
    assert results(root)["config"]["optim"]["lr"] == 0.01
    assert not (root.parent / "cv/folds/fold_3").exists()


def test_a_folder_with_other_files_is_refused(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root.parent / "cv"
    for name in ("last.pt", "folds/mine.csv", "classes.txt"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        assert main(arguments(root)) == 2
        error = capsys.readouterr().err
        assert f"has files, such as {name.split('/')[0]}, and is no cross-validation; use" in error
        assert (folder / name).read_text() == "mine"
        shutil.rmtree(folder)


def test_another_plan_is_no_cross_validation(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    (root.parent / "cv/folds").mkdir(parents=True)
    (root.parent / "cv/plan.json").write_text('{"mine": 1}')
    assert main(arguments(root)) == 2
    assert "plan.json is not a file of a cross-validation" in capsys.readouterr().err
    assert (root.parent / "cv/folds").exists()
    assert (root.parent / "cv/plan.json").read_text() == '{"mine": 1}'


def test_an_interrupted_first_start_continues(
    root: Path, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("ffn.cli.cross_validation_plan.write_fold_lists", fail)
        assert main(arguments(root)) == 2
    assert main(arguments(root)) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--group", "scenes"], "no column 'scenes'; the columns are path, label, scene, set"),
        (["--where", "set"], "--where set has no '='; expected COLUMN=VALUE"),
        (["--where", "set=z"], "no row with set=z"),
        (["--class-groups", "left,rigth"], "no class 'rigth'; the closest is 'right'"),
        (["--folds", "9"], "8 groups for 9 folds"),
        (["--annotations", "no.csv"], "annotations no.csv do not exist"),
        (["data.root=/nowhere"], "24 of 24 clips do not exist, the first is /nowhere/0.mp4; paths"),
        (["train.epoch=1"], "did you mean train.epochs?"),
    ],
)
def test_errors_are_printed_before_a_training(
    root: Path,
    trainings: Trainings,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    given = [*arguments(root), *more] if more[0][0] == "-" else arguments(root, *more)

    assert main(given) == 2

    error = capsys.readouterr().err
    assert error.startswith("crossvalidate.py: ")
    assert message in error
    assert not trainings.jobs


def test_class_groups_without_clips_are_refused_before_a_training(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "classes.txt").write_text("\n".join([*CLASSES, "push", "pull"]))
    given = [*arguments(root, "data.classes=classes.txt"), "--class-groups", "push,pull"]

    assert main(given) == 2

    message = "--class-groups push,pull: none of these classes has a clip. Name classes that"
    assert message in capsys.readouterr().err
    assert not trainings.jobs
    assert main([*given, ",".join(CLASSES[:2])]) == 0  # some groups may be empty
    assert results(root)["class_groups"]["clips"] == 16


def test_trainings_start_from_the_same_seed_and_fold_of_another(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(root, output="first"), "--seeds", "0", "5"]) == 0
    first, start = root.parent / "first", ["--start-from", str(root.parent / "first")]
    trainings.configs.clear()

    options = ["task.frames=[2]", "model.pretrained=true"]
    assert main([*arguments(root, *options), *start, "--seeds", "5", "0"]) == 0

    found = [(config.model.weights, config.model.pretrained) for config in trainings.configs]
    order = [(5, 0), (5, 1), (0, 0), (0, 1)]
    assert found == [(f"{first}/seed_{s}/fold_{f}/last.pt", False) for s, f in order]
    assert results(root)["start_from"] == str(first)
    assert results(root, "first")["start_from"] is None
    # A finished one needs the other no more; it does not change its start weights.
    shutil.rmtree(first)
    assert main([*arguments(root, *options), *start, "--seeds", "5", "0"]) == 0
    assert main([*arguments(root, *options), "--seeds", "5", "0"]) == 2
    assert "start_from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (["--start-from", "{data}/cv"], "--start-from and --output are the same folder"),
        (["--start-from", "{data}/data"], "is no folder of ffn crossvalidate"),
        (["--fold-seed", "3"], "has other clips, groups or folds"),
        (["--seeds", "0", "1"], "is not finished for seed 1, fold 0"),
        ("last.pt", "last.pt is missing"),
    ],
)
def test_start_weights_that_do_not_fit_are_refused(
    root: Path,
    trainings: Trainings,
    spoil: list[str] | str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments(root, output="first")) == 0
    trainings.jobs.clear()
    more = ["--start-from", f"{root.parent}/first"]
    if spoil == "last.pt":
        (root.parent / "first/seed_0/fold_1/last.pt").unlink()
    else:
        more += [part.format(data=root.parent) for part in spoil]

    assert main([*arguments(root), *more]) == 2
    assert message in capsys.readouterr().err
    assert not trainings.jobs


def test_a_failed_training_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise JobError("seed 0, fold 0 ended with status 2")

    monkeypatch.setattr("ffn.engine.jobs.run_jobs", fail)
    assert main(arguments(root)) == 2
    assert capsys.readouterr().err == "crossvalidate.py: seed 0, fold 0 ended with status 2\n"


def test_the_test_clips_do_not_stop_a_training(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(root, "train.patience=2", "train.epochs=9")) == 2
    error = capsys.readouterr().err
    assert "train.patience is 2; it must be 0 in a cross-validation" in error
    assert not (root.parent / "cv").exists()


def test_torchrun_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(arguments(root)) == 2
    assert "run it without torchrun" in capsys.readouterr().err


def test_without_groups_there_is_a_warning(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [text for text in arguments(root) if text not in ("--group", "scene")]
    assert main(given) == 0
    assert "warning: without --group each file is its own group" in capsys.readouterr().err
    assert results(root)["groups"] == CLIPS


def test_several_values_of_a_column_are_alternatives(root: Path, trainings: Trainings) -> None:
    where = ["--where", "set=a", "--where", "label=left", "--where", "label=still"]
    assert main([*arguments(root), *where]) == 0
    assert results(root)["clips"] == 8
    assert results(root)["classes"] == {"left": 4, "still": 4}


def test_networks_are_compared_on_the_same_folds(
    root: Path, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 3 and 4 frames the first network is right for 3 of 4 clips, the second for 2 of 4."""
    assert main(arguments(root, output="flexible")) == 0
    trainings.wrong = 2
    assert main(arguments(root, "task.name=plain", "task.frames=[4]", output="plain")) == 0
    assert main([*arguments(root, output="other"), "--fold-seed", "9"]) == 0
    folders = [str(root.parent / name) for name in ("flexible", "plain", "other")]
    stem = root.parent / "tables" / "v0.2"
    capsys.readouterr()

    assert compare.main([*folders[:2], "--output", str(stem)]) == 0

    written = sorted(path.name for path in stem.parent.iterdir())
    assert written == ["v0.2.json", "v0.2.md", "v0.2.png"]
    content = json.loads((stem.parent / "v0.2.json").read_text())
    assert content["against"] == "flexible"
    found = {row["frames"]: row["mean"] for row in content["differences"]["top1"]["plain"]}
    assert found == {2: 0.0, 3: -25.0, 4: -25.0}
    table = (stem.parent / "v0.2.md").read_text()
    assert table in capsys.readouterr().out
    assert "| flexible | 1 | **50.0 [" in table

    before = results(root, "plain")
    for name in ("results", "plan"):
        inside = ["--output", str(root.parent / "plain" / name), "--overwrite"]
        assert compare.main([*folders[:2], *inside]) == 2
        assert f"{name}.json is what the command reads" in capsys.readouterr().err
    assert results(root, "plain") == before

    assert compare.main(folders) == 2
    assert "flexible and other have different folds" in capsys.readouterr().err
    assert compare.main(folders[:1]) == 0
    assert "Difference" not in capsys.readouterr().out


# From here on with trainings.


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cross") / "data"
    root.mkdir()
    write_videos(root, train=CLIPS, val=1)
    write_annotations(root, [f"train_{i}.mp4" for i in range(CLIPS)])
    return root


def start(arguments: list[str]) -> subprocess.Popen:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tools/crossvalidate.py"), *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def predictions(videos: Path, output: str, seed: int, fold: int) -> Predictions:
    run = videos.parent / output / f"seed_{seed}" / f"fold_{fold}"
    return load_predictions(run / "test" / f"fold_{fold}_last.predictions.safetensors")


@pytest.mark.slow
def test_results_are_those_of_training_and_testing_by_hand(videos: Path) -> None:
    process = start([*arguments(videos, output="whole"), "--jobs", "2", "--shuffled"])
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed

    found = results(videos, "whole")
    tests = [
        load_table(videos.parent / f"whole/seed_0/fold_{fold}/test/results.json")[0]
        for fold in (0, 1)
    ]
    for row, *folds in zip(found["rows"], *(test.rows for test in tests), strict=True):
        assert row["frames"] == folds[0].frames
        right = sum(fold.top1 * fold.videos for fold in folds)
        assert row["top1"]["mean"] == pytest.approx(right / CLIPS, abs=0.01)
    assert {test.name for test in tests} == {"fold_0/last", "fold_1/last"}
    clips = Counter(path for fold in (0, 1) for path in predictions(videos, "whole", 0, fold).paths)
    records, _ = read_annotations(videos / "clips.csv")
    assert clips == Counter(record.path for record in records)
    assert {"top1_shuffled", "order"} <= set(found["rows"][0])


LONG = ("train.epochs=20", "train.save_steps=1", "train.validate_epochs=20")


@pytest.fixture(scope="module")
def uninterrupted(videos: Path) -> str:
    process = start(arguments(videos, *LONG, output="uninterrupted"))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return "uninterrupted"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_one_continues_to_the_same_predictions(
    videos: Path, uninterrupted: str, number: signal.Signals
) -> None:
    """Killed or stopped in the second training; it resumes at its last checkpoint."""
    name = f"by_{number.name}"
    process = start(arguments(videos, *LONG, output=name))
    second = videos.parent / name / "seed_0/fold_1/last.pt"
    limit = time.monotonic() + 120
    while not second.exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.05)

    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == (75 if number is signal.SIGINT else -number), printed
    log = second.parent.with_suffix(".log")
    if number is signal.SIGKILL:
        while "the same command resumes the run" not in log.read_text():
            assert time.monotonic() < limit + 60
            time.sleep(0.1)
    assert "SIGTERM: the run stops" in log.read_text()
    assert not (second.parent / "test").exists()

    process = start(arguments(videos, *LONG, output=name))
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert "2 trainings, 1 at a time; 1 are finished" in printed
    assert "resumed" in log.read_text()

    for fold in (0, 1):
        one, other = (predictions(videos, output, 0, fold) for output in (name, uninterrupted))
        assert one.paths == other.paths
        assert all(torch.equal(one.logits[t], other.logits[t]) for t in one.logits)
