"""``tools/crossvalidate.py CONFIG --annotations F --output D``: group-wise cross-validation."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffn.cli.arguments import positive_int

if TYPE_CHECKING:
    from ffn.datasets.folds import GroupedClips
    from ffn.engine.jobs import Job
    from ffn.engine.options import Config
    from ffn.evaluation.cross_validation_folder import CrossValidationFolder

# Runs a command of ffn in a subprocess that stops when this process has ended.
PROGRAM = (
    "from ffn.engine.jobs import end_with_parent; end_with_parent(); "
    "from ffn.cli import main; raise SystemExit(main())"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, train and test all folds, print and write the results; returns the exit status."""
    given = _parser().parse_intermixed_args(arguments)

    from ffn.engine.config import load_config
    from ffn.engine.failures import EXIT_FAILED, REPORTED
    from ffn.engine.jobs import JobError
    from ffn.engine.signals import EXIT_STOPPED, StoppedError

    try:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("it starts its processes itself; run it without torchrun")
        _cross_validate(given, load_config(given.config, given.options))
    except StoppedError as error:
        print(f"crossvalidate.py: {error}; the same command continues", file=sys.stderr)
        return EXIT_STOPPED
    except (*REPORTED, JobError) as error:
        print(f"crossvalidate.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:  # outside the trainings
        return 128 + signal.SIGINT
    return 0


def _cross_validate(given: argparse.Namespace, config: Config) -> None:
    from ffn.datasets.folds import assign_folds
    from ffn.engine.checkpoints.file import versions
    from ffn.engine.checkpoints.lock import lock_folder
    from ffn.engine.config import config_to_dict
    from ffn.engine.jobs import run_jobs
    from ffn.engine.signals import StopRequest
    from ffn.evaluation.cross_validation import (
        parse_class_groups,
        print_cross_validation,
        summarise_cross_validation,
    )
    from ffn.evaluation.cross_validation_folder import CrossValidationFolder

    clips = _read_clips(given, config)
    parse_class_groups(given.class_groups, clips.classes)  # errors before the trainings
    frames = sorted({*(given.frames or [*config.task.frames, *config.data.test_frames])})
    seeds = list(dict.fromkeys(given.seeds))
    fold_of = assign_folds(
        clips.labels, clips.groups, given.folds, seed=given.fold_seed, classes=clips.classes
    )
    folder = CrossValidationFolder(Path(given.output))
    with lock_folder(folder.path, option="--output"), StopRequest() as stop:
        _write_plan(folder, clips, fold_of, given, config)
        runs = [(seed, fold) for seed in seeds for fold in range(given.folds)]
        jobs = {}
        for seed, fold in runs:
            job = _job(folder, config, seed, fold, frames, shuffled=given.shuffled)
            if job is not None:
                jobs[job.name] = (job, seed, fold)
        _print_start(clips, fold_of, given, len(runs), len(jobs))
        ended = len(runs) - len(jobs)

        def on_end(job: Job, seconds: float) -> None:
            nonlocal ended
            ended += 1
            accuracy = _fold_accuracy(folder, *jobs[job.name][1:], frames)
            print(f"[{ended}/{len(runs)}] {job.name}: {accuracy}; {seconds:.0f} s", flush=True)

        todo = [job for job, _, _ in jobs.values()]
        run_jobs(todo, parallel=given.jobs, stop=stop, on_end=on_end)

        found = folder.load(
            folder.path.resolve().name,
            trained_frames=sorted(config.task.frames),
            seeds=seeds,
            frames=frames,
            shuffled=given.shuffled,
            class_groups=[text.split(",") for text in given.class_groups],
        )
        summary = summarise_cross_validation(found)
        about = {"config": config_to_dict(config), "versions": versions()}
        plan = {k: folder.plan[k] for k in ("annotations", "where", "group_column", "fold_seed")}
        path = folder.write_results({**plan, **summary, **about})
    print_cross_validation(found.name, summary)
    print(path)


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


def _write_plan(
    folder: CrossValidationFolder,
    clips: GroupedClips,
    fold_of: Sequence[int],
    given: argparse.Namespace,
    config: Config,
) -> None:
    """Write the plan and the lists of the folds, or check those in the folder.

    Before the first training has started, the plan may change.

    Raises:
        ValueError: the folder belongs to another cross-validation.
        FileExistsError: the folder has other files.
    """
    from ffn.datasets.folds import write_fold_lists
    from ffn.engine.config import config_to_dict
    from ffn.files import write_text

    plan = {
        "config": config_to_dict(config),
        "annotations": given.annotations,
        "where": given.where,
        "group_column": given.group,
        "folds": given.folds,
        "fold_seed": given.fold_seed,
        "fingerprint": clips.fingerprint(fold_of),
        "classes": clips.classes,
        "path": [row.path for row in clips.rows],
        "label": clips.labels,
        "group": clips.groups,
        "fold": list(fold_of),
    }
    if folder.has_plan and any(path.is_dir() for path in folder.path.glob("seed_*/fold_*")):
        _check_plan(folder, plan, config)
        return
    others = {path for path in folder.path.iterdir() if not path.name.startswith(".")}
    if not folder.has_plan and others - {folder.lists, folder.classes}:
        raise FileExistsError(
            f"{folder.path} has files and is no cross-validation; use another --output"
        )
    shutil.rmtree(folder.lists, ignore_errors=True)
    write_fold_lists(clips, fold_of, folder.lists)
    write_text(folder.classes, "".join(f"{name}\n" for name in clips.classes))
    folder.write_plan(plan)


def _check_plan(folder: CrossValidationFolder, plan: dict[str, Any], config: Config) -> None:
    from ffn.engine.config import changed_options

    before = folder.plan
    changed = changed_options(before["config"], config)
    changed += [
        f"{key} {before[key]} -> {plan[key]}"
        for key in ("group_column", "folds", "fold_seed")
        if before[key] != plan[key]
    ]
    if not changed and before["fingerprint"] != plan["fingerprint"]:
        sizes = f"{len(before['path'])} -> {len(plan['path'])} clips"
        changed.append(f"clips, labels or groups of the annotations, {sizes}")
    if changed:
        raise ValueError(
            f"{folder.path} belongs to a cross-validation with other options or clips "
            f"({'; '.join(changed[:5])}). Use another --output, or those of that cross-validation"
        )


def _job(
    folder: CrossValidationFolder,
    config: Config,
    seed: int,
    fold: int,
    frames: Sequence[int],
    *,
    shuffled: bool,
) -> Job | None:
    """The training of a fold and its tests; None if all predictions are there."""
    from ffn.engine.jobs import Job

    kinds = [False, True] if shuffled else [False]
    missing = [k for k in kinds if folder.predictions(seed, fold, frames, shuffled=k) is None]
    if not missing:
        return None
    _write_config(folder, config, seed, fold)
    source, run = str(folder.config(seed, fold)), folder.run(seed, fold)
    commands = [["train", source]]
    for kind in missing:
        # The last weights, not the best ones: the test clips must not be used for a choice.
        command = ["test", source, "--weights", str(run / "last.pt")]
        command += ["--output", str(folder.test(seed, fold, shuffled=kind))]
        command += ["--save-predictions", "--no-latency", *(["--shuffle-frames"] if kind else [])]
        commands.append([*command, "--frames", *map(str, frames)])
    return Job(
        name=f"seed {seed}, fold {fold}",
        commands=[[sys.executable, "-c", PROGRAM, *command] for command in commands],
        log=run.with_suffix(".log"),
    )


def _write_config(folder: CrossValidationFolder, config: Config, seed: int, fold: int) -> None:
    import yaml

    from ffn.engine.config import config_to_dict
    from ffn.files import write_text

    values: dict[str, Any] = config_to_dict(config)
    lists = folder.lists / f"fold_{fold}"
    names = {"train": lists / "train.csv", "val": lists / "test.csv", "classes": folder.classes}
    values["data"] |= {key: str(path.resolve()) for key, path in names.items()}
    values["train"]["seed"] = seed
    values["log"]["output"] = str(folder.run(seed, fold).resolve())
    path = folder.config(seed, fold)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


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
    parser = argparse.ArgumentParser(
        prog="crossvalidate.py",
        description="Train and test a config by cross-validation: the clips are split into folds, "
        "whole groups at a time; each fold is tested by a network that was trained on the others. "
        "Prints and writes accuracy with confidence intervals. The same command continues an "
        "interrupted cross-validation, and adds seeds, frame counts or measures to a finished "
        "one. See docs/cross_validation.md. Exit status: 0 finished; 2 error, with a message that "
        "names the cause; 75 stopped by a signal.",
    )
    option = parser.add_argument
    option("config", metavar="CONFIG", help="YAML file, as for tools/train.py")
    option("options", nargs="*", metavar="key=value", help="options that override the config")
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
    option("--folds", type=positive_int, default=5, metavar="K", help="number of folds; default: 5")
    option("--fold-seed", type=_seed, default=0, metavar="S", help="seed of the folds; default: 0")
    option(
        "--seeds",
        type=_seed,
        nargs="+",
        default=[0],
        metavar="S",
        help="seeds of the trainings (train.seed), with the same folds; default: 0",
    )
    option(
        "--frames",
        nargs="+",
        type=positive_int,
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
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)
