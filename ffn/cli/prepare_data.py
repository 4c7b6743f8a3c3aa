"""``tools/prepare_data.py DATASET --root ROOT``: write the index of a data set."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import add_imports_argument
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.data import Record
    from ffn.data.store.layout import Unreadable
    from ffn.data.store.packing import PackReport
    from ffn.datasets import CopySettings, Summary
    from ffn.datasets.preparation import Packing, Progress

# The names in ffn.datasets.DATASETS, listed here so that --help imports no decoder.
DATASETS = ("sthv1", "sthv2", "k400", "k600", "k700", "hmdb51", "ucf101", "jester", "folder")
SHOWN = 12  # problems on the console; problems.csv has all


@program("prepare_data", "the same command resumes")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 on success, 1 if there are problems, 2 on errors."""
    try:
        names = _import_datasets(arguments)
    except ImportError as error:
        return fail("prepare_data", error)
    parser = _parser(names)
    given = parser.parse_args(arguments)
    _check_options(parser, given, names)

    from ffn.datasets import PreparationError, SplitSettings, prepare

    split = _given(given, *_SPLIT)
    try:
        with _progress() as progress:
            summary = prepare(
                given.dataset,
                given.root,
                output=given.output,
                annotations=given.annotations,
                videos=given.videos,
                split=SplitSettings(**split) if split else None,
                copies=_copies(given),
                verify=given.verify,
                overwrite=given.overwrite,
                workers=given.workers,
                progress=progress,
                packing=_packing(given),
                **_given(given, "pattern", "timeout"),
            )
    except (PreparationError, OSError, ModuleNotFoundError, ValueError) as error:
        return fail("prepare_data", error)
    pattern = None if given.extract_frames else given.pattern
    _show(summary, Path(given.root).absolute(), pattern, given.pack)
    return 1 if summary.problems else 0


def _import_datasets(arguments: Sequence[str] | None) -> tuple[str, ...]:
    """Import the packages of ``--imports``; returns the names of all data sets."""
    parser = argparse.ArgumentParser(add_help=False)
    add_imports_argument(parser)
    packages = parser.parse_known_args(arguments)[0].imports
    if not packages:
        return DATASETS

    from ffn import datasets
    from ffn.registry import import_extensions

    import_extensions(packages)
    return (*DATASETS, *(name for name in datasets.DATASETS if name not in DATASETS))


def _parser(names: Sequence[str] = DATASETS) -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("prepare_data"),
        description="Read the official lists of a data set, read every video, and write "
        "ROOT/index: train.csv, val.csv, classes.txt, flip_pairs.yaml, dataset.json, problems.csv. "
        "The same command resumes an interrupted run. Exit status: 0 success, 1 the index is "
        "written and problems are listed, 2 error.",
    )
    option = parser.add_argument
    option("dataset", metavar="DATASET", help=f"one of {', '.join(names)}")
    option("--root", required=True, help="folder of the data set")
    add_imports_argument(parser)
    option("--output", help="folder of the index; default: ROOT/index")
    option("--annotations", help="folder of the official lists; default: found under ROOT")
    option("--videos", help="the only folder under ROOT to search for videos; default: ROOT")
    option(
        "--overwrite",
        action="store_true",
        help="replace an existing index; with --pack, append new videos to its store",
    )
    cores = os.cpu_count() or 1
    option(
        "--workers",
        type=int,
        default=cores,
        help=f"processes; 0: in this process, without timeout; default: {cores}",
    )
    option("--timeout", type=float, metavar="S", help="seconds per video; default: 600")
    option("--verify", action="store_true", help="decode and count all frames")
    option("--pattern", help="file names in a frame folder; default: {:05d}.jpg")
    _add_split_options(parser)
    _add_copy_options(parser)
    return parser


def _add_split_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("random split, for data sets without splits")
    group.add_argument(
        "--val-fraction", type=float, help="validation share of each class; default: 0.2"
    )
    group.add_argument(
        "--group-pattern",
        metavar="REGEX",
        help="keep videos together whose names have the same first group, such as '_g([0-9]+)_'",
    )
    group.add_argument("--seed", type=int, help="seed of the split; default: 0")


def _add_copy_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("copies, which the index then lists")
    formats = group.add_mutually_exclusive_group()
    formats.add_argument("--extract-frames", metavar="DIR", help="folders of 00001.jpg …")
    formats.add_argument("--reencode", metavar="DIR", help="small H.264 mp4, many key frames")
    group.add_argument("--pack", metavar="STORE", help="a clip store of the videos or copies")
    group.add_argument(
        "--short-side", type=int, metavar="PX", help="maximum short side; 0: no limit; default: 256"
    )
    group.add_argument(
        "--quality", type=int, help="JPEG quality, 1 to 100; default: 95, 90 in a store"
    )
    group.add_argument(
        "--quantizer", type=int, help="constant quantizer of H.264, 0 to 51; default: 20"
    )
    group.add_argument("--gop", type=int, help="frames per group of pictures in mp4; default: 12")
    group.add_argument(
        "--fps", type=float, help="frame rate of mp4 from frame folders; default: 12"
    )


_SPLIT = ("val_fraction", "group_pattern", "seed")
_MP4 = ("quantizer", "gop", "fps")


def _check_options(
    parser: argparse.ArgumentParser, given: argparse.Namespace, names: Sequence[str]
) -> None:
    """Refuse an unknown data set and options without effect."""
    if given.dataset not in names:
        close = difflib.get_close_matches(given.dataset, names, n=3) or names
        parser.error(
            f"unknown data set {given.dataset!r}; did you mean {', '.join(close)}? A custom "
            "data set needs --imports PACKAGE"
        )
    without_effect = {
        "--extract-frames or --pack": (
            given.extract_frames is None and given.pack is None,
            ("quality",),
        ),
        "--reencode": (given.reencode is None, _MP4),
        "--extract-frames, --reencode or --pack": (
            given.extract_frames is None and given.reencode is None and given.pack is None,
            ("short_side",),
        ),
    }
    for needed, (absent, options) in without_effect.items():
        for name in options:
            if absent and getattr(given, name) is not None:
                parser.error(f"--{name.replace('_', '-')} has no effect without {needed}")
    if given.workers < 0:
        parser.error(f"--workers is {given.workers}; expected 0 (in this process) or more")
    if given.timeout is not None:
        _check_timeout(parser, given)


def _check_timeout(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    from ffn.data.workers import check_timeout

    try:
        check_timeout(given.timeout)
    except ValueError as error:
        parser.error(f"--{error}")
    if not given.workers:
        parser.error("--timeout has no effect with --workers 0 (in this process); use 1 or more")


def _given(given: argparse.Namespace, *names: str) -> dict[str, object]:
    """The options that were given; the others keep their defaults."""
    return {name: getattr(given, name) for name in names if getattr(given, name) is not None}


def _copies(given: argparse.Namespace) -> CopySettings | None:
    from ffn.datasets import CopySettings

    folder = given.extract_frames or given.reencode
    if folder is None:
        return None
    format = "mp4" if given.reencode else "frames"
    options = _given(given, "short_side", *(_MP4 if given.reencode else ("quality",)))
    if given.short_side == 0:
        options["short_side"] = None
    return CopySettings(folder=Path(folder).absolute(), format=format, **options)


def _packing(given: argparse.Namespace) -> Packing | None:
    """The function that packs the videos, with ``--pack``."""
    if given.pack is None:
        return None
    from ffn.data import pack
    from ffn.data.store.packing import check_options
    from ffn.data.store.writer import check_folder

    options = _given(given, "short_side", "quality", "timeout")
    if given.short_side == 0:
        options["short_side"] = 2**16  # larger than any video
    check_options(**options)  # before the videos are read
    if given.pattern is not None and given.extract_frames is None:
        options["pattern"] = given.pattern
    root, folder = Path(given.root).absolute(), Path(given.pack).absolute()
    check_folder(folder)
    options |= {"workers": given.workers, "append": given.overwrite, "progress": True}

    def packed(records: Sequence[Record]) -> PackReport:
        report = pack(records, folder, root=root, **options)
        report.unreadable += _earlier_versions(records, folder, root)
        return report

    return packed


def _earlier_versions(records: Sequence[Record], folder: Path, root: Path) -> list[Unreadable]:
    """Videos whose file has another number of frames than the clip that a store has of it."""
    from ffn.data import ClipStore, VideoError
    from ffn.data.store.layout import Unreadable, key_of

    store, found = ClipStore(folder), []
    for record in records:
        key = key_of(record.path, str(root))
        if record.frames is None or (key, record.start, record.end) != (key, None, None):
            continue
        try:
            stored = len(store.open(key))
        except VideoError:  # it could not be packed, and is reported
            continue
        if stored != record.frames:
            reason = f"{folder} has an earlier version of it, of {stored} frames; name a new folder"
            found.append(Unreadable(key, None, None, reason))
    return found


@contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar per step, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, int] = {}

        def report(step: str, done: int, count: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=count)
            bars.update(tasks[step], completed=done)

        yield report


def _show(summary: Summary, root: Path, pattern: str | None, store: str | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("split", *("listed", "found", "missing", "unreadable", "in index", "classes"))
    for split in summary.splits:
        numbers = (split.listed, split.found, split.missing, split.unreadable, split.indexed)
        classes = f"{split.classes} of {len(summary.classes)}"
        table.add_row(split.name, *map(str, numbers), classes)
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for note in summary.notes:
        console.print(f"note: {escape(note)}")
    if summary.problems:
        counts = summary.description["problems"]
        shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        console.print(f"\nproblems ({shown}):")
        for one in summary.problems[:SHOWN]:
            split = f"{one.split} " if one.split else ""
            console.print(f"  {one.kind}: {escape(f'{split}{one.name}: {one.detail}')}")
        if len(summary.problems) > SHOWN:
            console.print(f"  … all in {escape(str(summary.output / 'problems.csv'))}")
    _show_flips(console.print, summary)
    options = _options(summary, root, pattern, store)
    console.print(f"\n{escape(str(summary.output))}\ntrain with\n  {escape(options)}")


def _show_flips(show: Callable[[str], None], summary: Summary) -> None:
    from rich.markup import escape

    flip = summary.description["flip"]
    if flip["pairs"]:
        show("\na horizontal flip exchanges these classes (flip_pairs.yaml):")
        for one, other in flip["pairs"]:
            show(f"  {escape(one)} <-> {escape(other)}")
    if flip["unpaired"]:
        show("\nthe mirror images of these are not classes, so flips give them a wrong label:")
        for name in flip["unpaired"]:
            show(f"  {escape(name)}")


def _options(summary: Summary, root: Path, pattern: str | None, store: str | None) -> str:
    """Options of a config that name this index."""
    from ffn.datasets.index import list_path

    index = list_path(summary.output, root)
    splits = [split.name for split in summary.splits if split.indexed]
    train = next((name for name in splits if name.endswith("train")), splits[0])
    others = [name for name in splits if name != train]
    options = [f"data.root={root}", f"data.train={index}/{train}.csv"]
    options += [f"data.val={index}/{others[0]}.csv"] if others else []
    options += [f"data.classes={index}/classes.txt"]
    options += [] if pattern is None else [f"data.frame_pattern={pattern}"]
    if store is not None:
        options += ["data.format=store", f"data.store={list_path(Path(store).absolute(), root)}"]
    return " ".join(map(shlex.quote, options))
