"""``tools/check_data.py INDEX``: decode the videos of a list and report the damaged ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import positive_int, refuse_existing
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.data import Record
    from ffn.datasets.checking import Finding

FILES = ("report.csv", "exclude.txt", "index.csv")
DECODERS = ("auto", "pyav", "decord")
MEANING = {
    "ok": "as listed",
    "count": "decodes, with another number of frames than listed",
    "short": "decodes, but ends long before the duration in its header",
    "bad": "does not decode; listed in exclude.txt",
}


@program("check_data", "nothing is written; the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if all videos decode, 1 if some do not, 2 on errors."""
    given = _parser().parse_args(arguments)

    from rich.console import Console
    from rich.progress import track

    from ffn.data import read_annotations
    from ffn.datasets.checking import check_videos
    from ffn.files import make_writable

    try:
        records, classes = read_annotations(given.index, root=given.root, classes=given.classes)
        output = given.output or _beside(given.index)
        _claim(output, given.overwrite, [given.index, *([given.classes] if given.classes else [])])
        make_writable(output)
        checked = check_videos(
            records,
            frames=None if given.frames == "all" else int(given.frames),
            decoder=given.decoder,
            pattern=given.pattern,
            workers=given.workers,
            timeout=given.timeout,
        )
        console, hidden = Console(stderr=True), not sys.stderr.isatty()
        options = {"total": len(records), "console": console, "disable": hidden}
        findings = list(track(checked, "decoding", transient=True, **options))
        root = given.root or (given.index if given.index.is_dir() else given.index.parent)
        _write(output, given.index, root, records, classes, findings)
    except (ValueError, OSError, ImportError) as error:
        return fail("check_data", error)

    _show(output, records, findings)
    return 0 if all(finding.usable for finding in findings) else 1


def _claim(output: Path, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Refuse a folder that holds files, unless they are a report that is to be replaced.

    Raises:
        FileExistsError: if a file would be overwritten.
    """
    if not output.exists() or not any(output.iterdir()):
        return
    for name in FILES:
        refuse_existing(output / name, overwrite=True, inputs=inputs)
    present = [name for name in FILES if (output / name).exists()]
    if present and FILES[0] not in present:
        raise FileExistsError(
            f"{output} holds {', '.join(present)}, but no report; name another folder with --output"
        )
    if not overwrite:
        what = "a report" if present else "files"
        raise FileExistsError(
            f"{output} holds {what}; name another folder with --output, or add --overwrite"
        )


def _write(
    output: Path,
    source: Path,
    root: Path,
    records: Sequence[Record],
    classes: Sequence[str],
    findings: Sequence[Finding],
) -> None:
    """Write report.csv, exclude.txt, and index.csv with the usable videos and their frames."""
    from ffn.data import has_several_labels, label_text
    from ffn.data.lists import further_columns, read_list
    from ffn.datasets.index import csv_text
    from ffn.files import write_text

    paths = [_listed(record.path, root) for record in records]
    pairs = list(zip(paths, records, findings, strict=True))
    report = [
        (
            path,
            f.status,
            record.frames,
            f.frames,
            "" if f.seconds is None else f"{f.seconds:.3f}",
            f.cause,
        )
        for path, record, f in pairs
    ]
    header = ("path", "status", "frames_listed", "frames", "seconds", "cause")
    write_text(output / "report.csv", csv_text([header, *report]))
    excluded = "".join(f"{path}\n" for path, _, finding in pairs if not finding.usable)
    write_text(output / "exclude.txt", excluded)
    names = () if source.is_dir() else further_columns(source)
    cells = [row.extra for row in read_list(source, names)] if names else [()] * len(records)
    timed = any(record.start is not None or record.end is not None for record in records)
    label = "labels" if has_several_labels(records) else "label"
    index = [("path", label, "frames", *(("start", "end") if timed else ()), *names)]
    for (path, record, finding), further in zip(pairs, cells, strict=True):
        times = (record.start, record.end) if timed else ()
        if finding.usable:
            text = label_text(record.label, classes)
            index.append((path, text, finding.frames, *times, *further))
    write_text(output / "index.csv", csv_text(index))


def _listed(path: str, root: Path) -> str:
    """The path of a video for a list: relative to the root, absolute if it is not below it.

    A relative path with `..` stays: behind a symbolic link, it cannot be shortened.
    """
    from ffn.datasets.index import list_path

    listed = Path(path.removeprefix(os.path.join(root, "")))
    if listed.is_absolute() and ".." not in listed.parts:
        return list_path(listed, Path(os.path.abspath(root)))
    return listed.as_posix()


def _beside(index: Path) -> Path:
    """The folder of the report: next to a list or a folder, so that it is no class of the data."""
    index = index.resolve() if index.name in ("", "..") else index
    return index.with_name(f"{index.stem}.check")


def _show(output: Path, records: Sequence[Record], findings: Sequence[Finding]) -> None:
    odd = [finding for finding in findings if finding.status != "ok"]
    for finding in odd[:20]:
        print(f"{finding.status:<5} {records[finding.index].path}: {finding.cause}")
    if len(odd) > 20:
        print(f"… and {len(odd) - 20} more in {output / 'report.csv'}")
    counts = Counter(finding.status for finding in findings)
    frames = sum(finding.frames or 0 for finding in findings)
    print(f"{len(findings)} videos, {frames} frames:")
    for status, meaning in MEANING.items():
        if counts[status]:
            print(f"  {counts[status]:>7} {status:<5} {meaning}")
    print(f"{output}: report.csv, exclude.txt, and index.csv with the usable videos")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("check_data"),
        description="Decode every video of a list in worker processes with a timeout. Write a "
        "folder with a report (cause per video), the list of the unreadable videos, and an index "
        "of the others with their actual numbers of frames. The list is not changed. Exit status: "
        "0 all videos decode, 1 some do not, 2 error.",
    )
    option = parser.add_argument
    option("index", type=Path, metavar="INDEX", help="list, csv, or folder with a folder per class")
    option("--root", type=Path, help="folder of the paths in the list; default: its folder")
    option("--classes", type=Path, metavar="FILE", help="class names, one per line")
    option(
        "--frames",
        type=_frames,
        default="all",
        metavar="all|K",
        help="decode all frames (default), or K evenly spaced ones: faster, finds less",
    )
    option("--decoder", default="auto", choices=DECODERS, help="video decoder; default: auto")
    option("--pattern", default="{:05d}.jpg", help="file names in a folder of frames")
    option("--timeout", type=float, default=60, metavar="S", help="seconds per video; default: 60")
    option(
        "--workers",
        type=int,
        default=os.cpu_count(),
        metavar="N",
        help="processes; default: one per CPU",
    )
    option(
        "--output", type=Path, metavar="FOLDER", help="folder of the report; default: INDEX.check"
    )
    option("--overwrite", action="store_true", help="replace an existing report")
    return parser


def _frames(text: str) -> str | int:
    return text if text == "all" else positive_int(text)
