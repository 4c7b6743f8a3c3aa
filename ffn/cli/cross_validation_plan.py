"""The trainings and tests of a cross-validation: plan, lists, configs and commands."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ffn.datasets.folds import GroupedClips, write_fold_lists
from ffn.engine.config import ConfigError, config_to_dict, different_options
from ffn.engine.jobs import Job
from ffn.engine.options import Config
from ffn.evaluation.cross_validation_folder import CrossValidationFolder
from ffn.files import write_text

Run = tuple[int, int]  # seed, fold

# Runs a command of ffn in a subprocess that stops when this process has ended.
PROGRAM = (
    "from ffn.engine.jobs import end_with_parent; end_with_parent(); "
    "from ffn.cli import main; raise SystemExit(main())"
)


def check_config(config: Config) -> None:
    """Check that the test clips do not influence the trainings.

    Raises:
        ConfigError: they would decide when a training stops.
    """
    if config.train.patience:
        raise ConfigError(
            f"train.patience is {config.train.patience}; it must be 0 in a cross-validation. A "
            "training validates on the test clips of its fold; if they decided when it stops, the "
            "accuracy would be too high. Choose train.epochs before, and set train.patience=0"
        )


def write_plan(
    folder: CrossValidationFolder,
    clips: GroupedClips,
    fold_of: Sequence[int],
    config: Config,
    given: argparse.Namespace,
) -> None:
    """Write the plan and the lists of the folds, or check those in the folder.

    Before the first training has started, the plan may change. It is written first: all other
    files in a folder with a plan are those of the cross-validation.

    Raises:
        ValueError: the folder belongs to another cross-validation, or has another plan.json.
        FileExistsError: the folder has files and no plan.
    """
    plan = {
        "config": config_to_dict(config),
        "annotations": given.annotations,
        "where": given.where,
        "group_column": given.group,
        "folds": given.folds,
        "fold_seed": given.fold_seed,
        "start_from": given.start_from and os.path.abspath(given.start_from),
        "fingerprint": clips.fingerprint(fold_of),
        "classes": clips.classes,
        "path": [row.path for row in clips.rows],
        "label": clips.labels,
        "group": clips.groups,
        "fold": list(fold_of),
    }
    before = folder.plan if folder.has_plan else None
    if before and any(path.is_dir() for path in folder.path.glob("seed_*/fold_*")):
        _check_plan(folder, before, plan, config)
        return
    others = sorted(path.name for path in folder.path.iterdir() if path.name[0] != ".")
    if not before and others:
        raise FileExistsError(
            f"{folder.path} has files, such as {others[0]}, and is no cross-validation; use "
            "another --output, or remove them"
        )
    folder.write_plan(plan)
    shutil.rmtree(folder.lists, ignore_errors=True)
    write_fold_lists(clips, fold_of, folder.lists)
    write_text(folder.classes, "".join(f"{name}\n" for name in clips.classes))


def _check_plan(
    folder: CrossValidationFolder, before: dict[str, Any], plan: dict[str, Any], config: Config
) -> None:
    changed = different_options(before["config"], config)
    changed += [
        f"{key} {before.get(key)} -> {plan[key]}"
        for key in ("group_column", "folds", "fold_seed", "start_from")
        if before.get(key) != plan[key]
    ]
    if not changed and before["fingerprint"] != plan["fingerprint"]:
        sizes = f"{len(before['path'])} -> {len(plan['path'])} clips"
        changed.append(f"clips, labels or groups of the annotations, {sizes}")
    if changed:
        raise ValueError(
            f"{folder.path} belongs to a cross-validation with other options or clips "
            f"({'; '.join(changed[:5])}). Use another --output, or those of that cross-validation"
        )


def check_start(folder: CrossValidationFolder, start: Path, runs: Iterable[Run]) -> None:
    """Check that another cross-validation has start weights for every training.

    Raises:
        ValueError: it has other clips or folds, or is not finished.
        FileNotFoundError: there is none, or a checkpoint is missing.
    """
    if start.resolve() == folder.path.resolve():
        raise ValueError("--start-from and --output are the same folder")
    other = CrossValidationFolder(start)
    if not other.has_plan:
        raise FileNotFoundError(f"--start-from {start} is no folder of ffn crossvalidate")
    if other.plan["fingerprint"] != folder.plan["fingerprint"]:
        raise ValueError(
            f"--start-from {start} has other clips, groups or folds; its networks may be trained "
            "on clips that are tested here"
        )
    for seed, fold in runs:
        if not any(other.test(seed, fold, shuffled=False).glob("*.predictions.safetensors")):
            raise ValueError(f"--start-from {start} is not finished for seed {seed}, fold {fold}")
        if not (other.run(seed, fold) / "last.pt").is_file():
            raise FileNotFoundError(f"{other.run(seed, fold) / 'last.pt'} is missing")


def fold_job(
    folder: CrossValidationFolder,
    config: Config,
    seed: int,
    fold: int,
    frames: Sequence[int],
    *,
    shuffled: bool,
    device: str | None = None,
) -> Job | None:
    """The training of a fold and its tests; None if all predictions are there."""
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
        commands.append([*command, "--overwrite", "--frames", *map(str, frames)])
    if device is not None:
        commands = [[*command, "--device", device] for command in commands]
    return Job(
        name=f"seed {seed}, fold {fold}",
        commands=[[sys.executable, "-c", PROGRAM, *command] for command in commands],
        log=run.with_suffix(".log"),
    )


def _write_config(folder: CrossValidationFolder, config: Config, seed: int, fold: int) -> None:
    values: dict[str, Any] = config_to_dict(config)
    lists = folder.lists / f"fold_{fold}"
    names = {"train": lists / "train.csv", "val": lists / "test.csv", "classes": folder.classes}
    values["data"] |= {key: str(path.resolve()) for key, path in names.items()}
    values["train"]["seed"] = seed
    if start := folder.plan.get("start_from"):
        weights = CrossValidationFolder(Path(start)).run(seed, fold) / "last.pt"
        values["model"] |= {"weights": str(weights), "pretrained": False}
    values["log"]["output"] = str(folder.run(seed, fold).resolve())
    path = folder.config(seed, fold)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
