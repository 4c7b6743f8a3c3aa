"""Write the index of a data set."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter
from cyclopts.types import ExistingDirectory, NonNegativeInt

from ffn.cli.arguments import Imports, Overwrite
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from ffn.datasets import Summary

SHOWN = 12  # problems on the console; problems.csv has all
# The config to train with; one for a few hundred clips is that of other data sets.
CONFIGS = {
    "sthv1": "sthv1/tsm_r50",
    "sthv2": "sthv2/tsm_r50",
    "jester": "sthv2/tsm_r50",
    "hmdb51": "hmdb51/tsm_r50",
    "ucf101": "hmdb51/tsm_r50",
    **dict.fromkeys(("k400", "k600", "k700"), "k400/tsm_r50"),
    "grid": "quickstart/own_motions",
}
OWN_CONFIG = "quickstart/own_clips_plain"

_SPLIT = Parameter(group=Group("Random split, for data sets without splits"))
_COPIES = Parameter(group=Group("Copies, which the index then lists"))


def prepare(
    dataset: Annotated[str, Parameter(name="DATASET")],
    /,
    *,
    root: ExistingDirectory,
    output: Path | None = None,
    annotations: ExistingDirectory | None = None,
    verify: bool = False,
    overwrite: Overwrite = False,
    pattern: str | None = None,
    workers: NonNegativeInt | None = None,
    timeout: float = 600,
    imports: Imports = None,
    val_fraction: Annotated[float | None, _SPLIT] = None,
    group_pattern: Annotated[str | None, _SPLIT] = None,
    seed: Annotated[int | None, _SPLIT] = None,
    reencode: Annotated[Path | None, _COPIES] = None,
    short_side: Annotated[int, _COPIES] = 256,
    gop: Annotated[int, _COPIES] = 12,
) -> int:
    """Write the index of a data set from its official lists and files.

    Reads the lists and every video, and writes ROOT/index: train.csv, val.csv, classes.txt,
    flip_pairs.yaml, dataset.json, problems.csv. Prints the command that trains with it.

    Exit status: 0: done. 1: the index is written, and problems are listed. 2: error.

    Args:
        dataset: sthv1, sthv2, k400, k600, k700, hmdb51, ucf101, jester, grid, or folder: your own
            videos.
        root: Folder of the data set, or of one of several copies of its videos.
        output: Folder of the index; default: ROOT/index.
        annotations: Folder of the official lists; default: found under ROOT.
        verify: Decode and count all frames.
        pattern: File names in a folder of frames; default: {:05d}.jpg. * is any number.
        workers: Processes; 0: in this process, without timeout; default: the number of cores.
        timeout: Seconds per video.
        val_fraction: Validation share of each class; default: 0.2.
        group_pattern: Regular expression: videos whose names have the same first group stay in one
            split, e.g. `_g([0-9]+)_`.
        seed: Of the split; default: 0.
        reencode: Folder for copies as small H.264 files with many key frames.
        short_side: Maximum short side in pixels; 0: no limit.
        gop: Frames per group of pictures in H.264.
    """
    import_extensions(imports or [])
    from ffn import datasets
    from ffn.data.decoding import PATTERN

    copies = None
    if reencode:
        copies = datasets.CopySettings(reencode.absolute(), short_side or None, gop)
    split = {"val_fraction": val_fraction, "group_pattern": group_pattern, "seed": seed}
    split = {name: value for name, value in split.items() if value is not None}
    summary = datasets.prepare(
        dataset,
        root,
        output=output,
        annotations=annotations,
        split=datasets.SplitSettings(**split) if split else None,
        copies=copies,
        pattern=pattern or PATTERN,
        verify=verify,
        overwrite=overwrite,
        workers=(os.cpu_count() or 1) if workers is None else workers,
        timeout=timeout,
        progress=sys.stdout.isatty(),
    )
    _show(summary)
    command = train_command(dataset, summary, root, None if reencode else pattern)
    print(f"train with\n  {command}")
    return 1 if summary.problems else 0


def _show(summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("split", "listed", "in index", "classes")
    about = summary.description["fingerprint"]
    for split, numbers in about["videos_per_class"].items():
        listed, indexed = summary.description["listed"].get(split, 0), about["videos"][split]
        found = f"{sum(map(bool, numbers.values()))} of {len(numbers)}" if numbers else "texts"
        table.add_row(split, str(listed), str(indexed), found)
    Console(soft_wrap=True, highlight=False).print(table)
    for note in summary.notes:
        print(f"note: {note}")
    if summary.problems:
        counts = summary.description["problems"].items()
        print(f"\nproblems ({', '.join(f'{count} {kind}' for kind, count in counts)}):")
        for one in summary.problems[:SHOWN]:
            split = f"{one.split} " if one.split else ""
            print(f"  {one.kind}: {split}{one.name}: {one.detail}")
        if len(summary.problems) > SHOWN:
            print(f"  … all in {summary.output / 'problems.csv'}")
    flip = summary.description["flip"]
    if flip["pairs"]:
        print("\na horizontal flip exchanges these classes (flip_pairs.yaml):")
        print("\n".join(f"  {one} <-> {other}" for one, other in flip["pairs"]))
    if flip["unpaired"]:
        print("\nthe mirror images of these are not classes, so flips give them a wrong label:")
        print("\n".join(f"  {name}" for name in flip["unpaired"]))
    print(f"\n{summary.output}")


def train_command(dataset: str, summary: Summary, root: Path, pattern: str | None) -> str:
    """The command that trains with an index.

    ``pattern`` is that of the file names in a folder of frames, if they are not the usual ones.
    """
    from ffn.datasets.index import list_path

    root = root.absolute()
    index = list_path(summary.output, root)
    videos = summary.description["fingerprint"]["videos"]
    splits = [name for name, count in videos.items() if count]
    train = next((name for name in splits if name.endswith("train")), splits[0])
    fold = train.rpartition("/")[0]
    held_out = next((n for n in splits if n != train and n.rpartition("/")[0] == fold), None)
    options = [f"data.root={root}", f"data.train={index}/{train}.csv"]
    options += [f"data.val={index}/{held_out}.csv"] if held_out else []
    written = {f"{fold}/classes.txt", "classes.txt"} & {*summary.description["files"]}
    options += [f"data.classes={index}/{name}" for name in written]
    options += [f"data.frame_pattern={pattern}"] if pattern else []
    pairs = summary.description["flip"]["pairs"]
    if dataset not in CONFIGS and pairs and not summary.description["flip"]["unpaired"]:
        options += ["data.flip=swap", f"data.flip_pairs={json.dumps(pairs, ensure_ascii=False)}"]
    return f"ffn train {CONFIGS.get(dataset, OWN_CONFIG)} {shlex.join(options)}"
