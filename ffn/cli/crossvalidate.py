"""``tools/crossvalidate.py CONFIG --annotations F --output D``: group-wise cross-validation."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    add_device_argument,
    add_overrides_argument,
    find_device,
    frame_count,
    non_negative_int,
    positive_int,
)
from ffn.cli.configs import find_config
from ffn.cli.program import Parser, called_as, fail, prefix, program

PLAN_KEYS = ("annotations", "where", "group_column", "fold_seed", "start_from")  # in results.json

if TYPE_CHECKING:
    from ffn.datasets.folds import GroupedClips
    from ffn.engine.jobs import Job
    from ffn.engine.options import Config
    from ffn.evaluation.cross_validation_folder import CrossValidationFolder, Reported


@program("crossvalidate", "the same command continues")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train and test all folds, print and write the results; returns the exit status."""
    given = _parser().parse_with_overrides(arguments)

    from ffn.engine.config import load_config
    from ffn.engine.failures import REPORTED
    from ffn.engine.jobs import JobError
    from ffn.engine.signals import EXIT_STOPPED, StoppedError

    try:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("it starts its processes itself; run it without torchrun")
        if given.device is not None:
            find_device(given.device)
        _cross_validate(given, load_config(find_config(given.config), given.options))
    except StoppedError as error:
        print(f"{prefix('crossvalidate')}: {error}; the same command continues", file=sys.stderr)
        return EXIT_STOPPED
    except (*REPORTED, JobError) as error:
        return fail("crossvalidate", error)
    return 0


def _cross_validate(given: argparse.Namespace, config: Config) -> None:
    from ffn.cli.cross_validation_plan import check_config, check_start, fold_job, write_plan
    from ffn.datasets.folds import assign_folds
    from ffn.engine.checkpoints.file import versions
    from ffn.engine.checkpoints.lock import lock_folder
    from ffn.engine.jobs import run_jobs
    from ffn.engine.signals import StopRequest
    from ffn.evaluation.cross_validation import summarise_cross_validation
    from ffn.evaluation.cross_validation_folder import CrossValidationFolder
    from ffn.evaluation.cross_validation_table import print_cross_validation

    check_config(config)
    clips = _read_clips(given, config)
    class_groups = _class_groups(given, clips)
    fold_of = assign_folds(
        clips.labels, clips.groups, given.folds, seed=given.fold_seed, classes=clips.classes
    )
    folder = CrossValidationFolder(Path(given.output))
    with lock_folder(folder.path, option="--output") as note, StopRequest() as stop:
        if note:
            print(f"warning: {note}", file=sys.stderr)
        write_plan(folder, clips, fold_of, config, given)
        asked = _with_earlier(folder.reported(), given, config, class_groups)
        frames = asked.frames
        runs = [(seed, fold) for seed in asked.seeds for fold in range(given.folds)]
        options = {"shuffled": asked.shuffled, "device": given.device}
        found = [(fold_job(folder, config, *run, frames, **options), *run) for run in runs]
        jobs = {job.name: (job, *run) for job, *run in found if job is not None}
        if given.start_from and jobs:
            start = Path(given.start_from)
            check_start(folder, start, [(seed, fold) for _, seed, fold in jobs.values()])
        _print_start(clips, fold_of, given, len(runs), len(jobs))
        ended = len(runs) - len(jobs)

        def on_end(job: Job, seconds: float) -> None:
            nonlocal ended
            ended += 1
            accuracy = _fold_accuracy(folder, *jobs[job.name][1:], frames)
            print(f"[{ended}/{len(runs)}] {job.name}: {accuracy}; {seconds:.0f} s", flush=True)

        todo = [job for job, _, _ in jobs.values()]
        run_jobs(todo, parallel=given.jobs, stop=stop, on_end=on_end)

        found = folder.load(folder.path.resolve().name, **vars(asked))
        summary = summarise_cross_validation(found)
        plan = {key: folder.plan.get(key) for key in PLAN_KEYS}
        folder.write_predictions(found)
        about = {"config": folder.plan["config"], "versions": versions()}
        path = folder.write_results({**plan, **summary, **about})
    print_cross_validation(found.name, summary)
    print(path)


def _class_groups(given: argparse.Namespace, clips: GroupedClips) -> list[list[str]]:
    """The class names of each group; ValueError if none of these classes has a clip."""
    from ffn.evaluation.cross_validation import parse_class_groups

    groups = parse_class_groups(given.class_groups, clips.classes)
    if groups and {*clips.labels}.isdisjoint(chain(*groups)):
        raise ValueError(
            f"--class-groups {' '.join(given.class_groups)}: none of these classes has a clip. "
            "Name classes that have clips, change --where, or leave --class-groups out"
        )
    return [[clips.classes[c] for c in group] for group in groups]


def _with_earlier(
    earlier: Reported,
    given: argparse.Namespace,
    config: Config,
    class_groups: Sequence[Sequence[str]],
) -> Reported:
    """What is tested and reported: what the command asks for, and all that was reported before."""
    from ffn.core import all_trained_frames
    from ffn.evaluation.cross_validation_folder import Reported

    frames = given.frames or [*config.task.frames, *config.data.test_frames]
    return Reported(
        trained_frames=all_trained_frames(config.task.trained_frames),
        seeds=list(dict.fromkeys([*given.seeds, *earlier.seeds])),
        frames=sorted({*frames, *earlier.frames}),
        shuffled=given.shuffled or earlier.shuffled,
        class_groups=class_groups or earlier.class_groups,
    )


def _read_clips(given: argparse.Namespace, config: Config) -> GroupedClips:
    """Read the clips and check that their files exist."""
    from ffn.datasets.folds import read_grouped_clips
    from ffn.engine.options import DataFormat

    where = defaultdict(list)
    for text in given.where:
        column, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--where {text} has no '='; expected COLUMN=VALUE")
        where[column].append(value)
    data = config.data
    clips = read_grouped_clips(
        given.annotations,
        root=data.root,
        group=given.group,
        where=where,
        classes=None if data.classes is None else Path(data.root) / data.classes,
    )
    missing = [record.path for record in clips.records if not os.path.exists(record.path)]
    if missing and data.format is DataFormat.video:
        raise FileNotFoundError(
            f"{len(missing)} of {len(clips.rows)} clips do not exist, the first is {missing[0]}; "
            f"paths start from data.root={data.root}"
        )
    if given.group is None:
        print(
            "warning: without --group each file is its own group. If several files show the same "
            "person, scene or source video, training and test have near-duplicates, and the "
            "accuracy is too high",
            file=sys.stderr,
        )
    return clips


def _print_start(
    clips: GroupedClips, fold_of: Sequence[int], given: argparse.Namespace, runs: int, todo: int
) -> None:
    groups = Counter(dict(zip(clips.groups, fold_of, strict=True)).values())
    sizes = Counter(fold_of)
    print(
        f"{len(clips.rows)} clips of {len(set(clips.labels))} classes in {len(set(clips.groups))} "
        f"groups; clips (groups) of the folds: "
        + ", ".join(f"{sizes[fold]} ({groups[fold]})" for fold in sorted(sizes))
    )
    done = f"; {runs - todo} are finished" if todo < runs else ""
    print(
        f"{runs} trainings, {given.jobs} at a time{done}; console output: "
        f"{Path(given.output) / 'seed_*' / 'fold_*.log'}",
        flush=True,
    )


def _fold_accuracy(
    folder: CrossValidationFolder, seed: int, fold: int, frames: Sequence[int]
) -> str:
    """Top-1 of one fold, for the console."""
    from ffn.evaluation import accuracy, label_ranks

    kept = folder.predictions(seed, fold, frames)
    if kept is None:
        raise ValueError(
            f"seed {seed}, fold {fold} has no predictions for its clips; see "
            f"{folder.run(seed, fold).with_suffix('.log')}"
        )

    def shown() -> Iterator[str]:
        for count in frames:
            top1 = accuracy(label_ranks(kept.logits[count], kept.label), kept.label)["top1"]
            yield f"{count}f {top1:.1f}"

    return f"top-1 {', '.join(shown())}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("crossvalidate"),
        description="Train and test a config by cross-validation: the clips are split into folds, "
        "whole groups at a time; each fold is tested by a network that was trained on the others. "
        "Prints and writes accuracy with confidence intervals. The same command continues an "
        "interrupted cross-validation, and adds seeds, frame counts or measures to a finished "
        "one. See docs/cross_validation.md. Exit status: 0 finished; 2 error, with a message that "
        "names the cause; 75 stopped by a signal.",
    )
    option = parser.add_argument
    option("config", metavar="CONFIG", help="YAML file, or a name of `ffn configs`")
    add_overrides_argument(parser)
    option(
        "--annotations",
        required=True,
        metavar="FILE",
        help="csv with a header: path, label, a group column; paths start from data.root",
    )
    option("--output", required=True, metavar="FOLDER", help="folder for all files")
    option(
        "--group",
        metavar="COLUMN",
        help="column with the person, scene or source video of a clip; default: each file is its "
        "own group",
    )
    option(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="use only the rows with this value; several values of one column are alternatives",
    )
    _add_measures(parser)
    return parser


def _add_measures(parser: argparse.ArgumentParser) -> None:
    """Options about the trainings, the tests and what is reported."""
    option = parser.add_argument
    option("--folds", type=positive_int, default=5, metavar="K", help="number of folds; default: 5")
    option(
        "--fold-seed",
        type=non_negative_int,
        default=0,
        metavar="S",
        help="seed of the folds; default: 0",
    )
    option(
        "--seeds",
        type=non_negative_int,
        nargs="+",
        default=[0],
        metavar="S",
        help="seeds of the trainings (train.seed), with the same folds; default: 0",
    )
    option(
        "--start-from",
        metavar="FOLDER",
        help="--output of a finished cross-validation with the same clips and folds: each training "
        "starts from the last weights of its seed and fold, in place of the config's start weights",
    )
    option(
        "--frames",
        nargs="+",
        type=frame_count,
        metavar="T",
        help="frames of a test clip; default: task.frames and data.test_frames",
    )
    option(
        "--shuffled",
        action="store_true",
        help="also test every clip with its frames in a random, reproducible order",
    )
    option(
        "--class-groups",
        nargs="+",
        default=[],
        metavar="A,B",
        help="also report the accuracy if the group of the class is known, for groups of classes",
    )
    option(
        "--jobs",
        type=positive_int,
        default=1,
        metavar="N",
        help="trainings at a time; they share the CPU threads, and use the GPUs in turn",
    )
    add_device_argument(parser)
