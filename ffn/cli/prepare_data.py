"""``tools/prepare_data.py DATASET --root ROOT``: official lists and files become an index."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffn.datasets import Conversion, Summary
    from ffn.datasets.run import Packing, Progress

# Named here so that --help loads no decoder; ffn.datasets.DATASETS has the readers.
DATASETS = ("sthv1", "sthv2", "k400", "k600", "k700", "hmdb51", "ucf101", "jester", "folder")
SHOWN = 12  # problems on the console; problems.csv has all


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepare a data set; 0 if all is well, 1 if there are problems, 2 if it cannot be done."""
    parser = _parser()
    given = parser.parse_args(arguments)
    _check_options(parser, given)

    from ffn.datasets import Division, PreparationError, prepare

    dividing = _given(given, *_DIVIDING)
    try:
        with _progress() as progress:
            summary = prepare(
                given.dataset,
                given.root,
                output=given.output,
                annotations=given.annotations,
                videos=given.videos,
                division=Division(**dividing) if dividing else None,
                conversion=_conversion(given),
                verify=given.verify,
                overwrite=given.overwrite,
                workers=given.workers,
                progress=progress,
                packing=_packing(given),
                **_given(given, "pattern", "timeout"),
            )
    except (PreparationError, OSError, ModuleNotFoundError, ValueError) as error:
        print(f"prepare_data.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare_data.py: stopped; the same command continues", file=sys.stderr)
        return 130
    pattern = None if given.extract_frames else given.pattern
    _show(summary, Path(given.root).absolute(), pattern, given.pack)
    return 1 if summary.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prepare_data.py",
        description="Read the official lists of a data set, look at every file, and write "
        "ROOT/index: train.csv, val.csv, classes.txt, flip_pairs.yaml, dataset.json, problems.csv. "
        "An interrupted run continues. Exit status: 0 clean, 1 with problems, 2 nothing written.",
    )
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--root", required=True, help="folder of the data set")
    parser.add_argument("--output", help="folder of the index (ROOT/index)")
    parser.add_argument("--annotations", help="folder of the official lists (searched under ROOT)")
    parser.add_argument("--videos", help="folder under ROOT that holds the videos (searched)")
    parser.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, default=cores, help=f"processes ({cores})")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that a video may take (600)"
    )
    parser.add_argument("--verify", action="store_true", help="decode every frame, and count these")
    parser.add_argument("--pattern", help="names in a frame folder ({:05d}.jpg)")
    folder = parser.add_argument_group("dataset folder, without folders of splits")
    folder.add_argument("--val-fraction", type=float, help="of each class, held out (0.2)")
    folder.add_argument(
        "--group-pattern",
        metavar="REGEX",
        help="clips whose names agree in its first group stay together, as '_g([0-9]+)_'",
    )
    folder.add_argument("--seed", type=int, help="another number, another division (0)")
    copies = parser.add_argument_group("copies, which the index then lists")
    kinds = copies.add_mutually_exclusive_group()
    kinds.add_argument("--extract-frames", metavar="DIR", help="folders of 00001.jpg …")
    kinds.add_argument("--reencode", metavar="DIR", help="small H.264 mp4 that seeks well")
    copies.add_argument("--pack", metavar="STORE", help="a clip store of the videos or copies")
    copies.add_argument(
        "--short-side", type=int, metavar="PX", help="larger ones shrink to it (256), 0: none do"
    )
    copies.add_argument("--quality", type=int, help="of JPEG, 1 to 100 (95; 90 in a store)")
    copies.add_argument("--quantiser", type=int, help="of H.264, 0 to 51, constant (20)")
    copies.add_argument("--gop", type=int, help="frames per group of pictures in mp4 (12)")
    copies.add_argument("--fps", type=float, help="of mp4 made from frame folders (12)")
    return parser


_DIVIDING = ("val_fraction", "group_pattern", "seed")
_MP4 = ("quantiser", "gop", "fps")


def _check_options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    useless = {
        "the data set folder": (given.dataset != "folder", _DIVIDING),
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
    for needed, (absent, names) in useless.items():
        for name in names:
            if absent and getattr(given, name) is not None:
                parser.error(f"--{name.replace('_', '-')} has no effect without {needed}")
    if given.timeout is not None and given.timeout <= 0:
        parser.error(f"--timeout is {given.timeout:g}; expected more than 0")
    if given.workers < 0:
        parser.error(f"--workers is {given.workers}; expected 0 (in this process) or more")


def _given(given: argparse.Namespace, *names: str) -> dict[str, object]:
    """Options that were typed; the others keep the defaults of what they are for."""
    return {name: getattr(given, name) for name in names if getattr(given, name) is not None}


def _conversion(given: argparse.Namespace) -> Conversion | None:
    from ffn.datasets import Conversion

    folder = given.extract_frames or given.reencode
    if folder is None:
        return None
    form = "mp4" if given.reencode else "frames"
    options = _given(given, "short_side", *(_MP4 if given.reencode else ("quality",)))
    if given.short_side == 0:
        options["short_side"] = None
    return Conversion(folder=Path(folder).absolute(), form=form, **options)


def _packing(given: argparse.Namespace) -> Packing | None:
    """What packs the videos, if that is asked for."""
    if given.pack is None:
        return None
    from ffn.data import pack

    options = _given(given, "short_side", "quality")
    if given.short_side == 0:
        options["short_side"] = 2**16  # no video is larger
    if given.pattern is not None and given.extract_frames is None:
        options["pattern"] = given.pattern
    root, folder = Path(given.root).absolute(), Path(given.pack).absolute()
    return partial(pack, folder=folder, root=root, workers=given.workers, progress=True, **options)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar per step, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, count: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=count)
            bars.update(tasks[what], completed=done)

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
            where = f"{one.split} " if one.split else ""
            console.print(f"  {one.kind}: {escape(f'{where}{one.name}: {one.detail}')}")
        if len(summary.problems) > SHOWN:
            console.print(f"  … all in {escape(str(summary.output / 'problems.csv'))}")
    _show_flips(console.print, summary)
    options = _options(summary, root, pattern, store)
    console.print(f"\n{escape(str(summary.output))}\ntrain with\n  {escape(options)}")


def _show_flips(show: Callable[[str], None], summary: Summary) -> None:
    from rich.markup import escape

    flip = summary.description["flip"]
    if flip["pairs"]:
        show("\na flip exchanges these classes (flip_pairs.yaml):")
        for one, other in flip["pairs"]:
            show(f"  {escape(one)} <-> {escape(other)}")
    if flip["unpaired"]:
        show("\nthe mirror image of these is not a class, so flips mislabel them:")
        for name in flip["unpaired"]:
            show(f"  {escape(name)}")


def _options(summary: Summary, root: Path, pattern: str | None, store: str | None) -> str:
    """Options of a config that name this index."""
    from ffn.datasets.index import list_path

    index = list_path(summary.output, root)
    splits = [split.name for split in summary.splits if split.indexed]
    train = next((name for name in splits if name.endswith("train")), splits[0])
    held_out = [name for name in splits if name != train]
    options = [f"data.root={root}", f"data.train={index}/{train}.csv"]
    options += [f"data.val={index}/{held_out[0]}.csv"] if held_out else []
    options += [f"data.classes={index}/classes.txt"]
    options += [] if pattern is None else [f"data.frame_pattern={pattern}"]
    if store is not None:
        options += ["data.format=store", f"data.store={list_path(Path(store).absolute(), root)}"]
    return " ".join(map(shlex.quote, options))
