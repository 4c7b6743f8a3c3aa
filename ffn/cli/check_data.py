"""Decode the videos of a list and report the damaged ones."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts.types import (
    ExistingDirectory,
    ExistingFile,
    ExistingPath,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from ffn.cli.arguments import Overwrite
from ffn.files import (
    make_writable,
    printable,
    refuse_existing,
    without_password,
    write_csv,
    write_text,
)

if TYPE_CHECKING:
    from ffn.data import Record
    from ffn.datasets.checking import Finding

FILES = ("report.csv", "exclude.txt", "index.csv")
MEANING = {
    "ok": "as listed",
    "count": "decodes, with another number of frames than listed",
    "short": "decodes, but ends long before the duration in its header",
    "bad": "does not decode; listed in exclude.txt",
}


def check_data(
    index: ExistingPath,
    /,
    *,
    root: ExistingDirectory | None = None,
    classes: ExistingFile | None = None,
    frames: PositiveInt | Literal["all"] = "all",
    pattern: str = "{:05d}.jpg",
    timeout: PositiveFloat = 60,
    workers: NonNegativeInt | None = None,
    output: Path | None = None,
    overwrite: Overwrite = False,
) -> int:
    """Decode every video of a list, and write a report.

    The folder of the report has the cause per video, the list of the unreadable videos, and an
    index of the others with their actual numbers of frames. The list is not changed. Exit status: 0
    all videos decode, 1 some do not, 2 error.

    Args:
        index: List, csv, or folder with a folder per class.
        root: Folder of the paths in the list; default: its folder.
        classes: File of class names, one per line.
        frames: Number of evenly spaced frames to decode: faster than all, and finds less.
        pattern: File names in a folder of frames.
        timeout: Seconds per video.
        workers: Processes; default: one per CPU.
        output: Folder of the report; default: INDEX.check.
    """
    from ffn.data import read_annotations

    records, names = read_annotations(index, root=root, classes=classes)
    output = output or _beside(index)
    inputs = [index, *([classes] if classes else [])]
    refuse_existing([output / name for name in FILES], overwrite, inputs=inputs)
    make_writable(output)

    from rich.console import Console
    from rich.progress import track

    from ffn.datasets.checking import check_videos

    checked = check_videos(
        records,
        frames=None if frames == "all" else frames,
        pattern=pattern,
        workers=os.cpu_count() if workers is None else workers,
        timeout=timeout,
    )
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    options = {"total": len(records), "console": console, "disable": hidden}
    findings = list(track(checked, "decoding", transient=True, **options))
    root = root or (index if index.is_dir() else index.parent)
    _write(output, index, root, records, names, findings)
    _show(output, records, findings)
    return 0 if all(finding.usable for finding in findings) else 1


def _write(
    output: Path,
    source: Path,
    root: Path,
    records: Sequence[Record],
    classes: Sequence[str],
    findings: Sequence[Finding],
) -> None:
    """Write report.csv, exclude.txt, and index.csv with the usable videos and their frames."""
    from ffn.data import has_several_labels, label_text, read_annotation_rows

    folder = os.path.join(root, "")
    paths = [record.path.removeprefix(folder) for record in records]
    pairs = list(zip(paths, records, findings, strict=True))
    report = []
    for path, record, f in pairs:
        seconds = "" if f.seconds is None else f"{f.seconds:.3f}"
        report.append((path, f.status, record.frames, f.frames, seconds, f.cause))
    header = ("path", "status", "frames_listed", "frames", "seconds", "cause")
    write_csv(output / "report.csv", [header, *report])
    excluded = "".join(f"{path}\n" for path, _, finding in pairs if not finding.usable)
    write_text(output / "exclude.txt", excluded)
    cells = [row.others for row in read_annotation_rows(source)]
    timed = any(record.start is not None or record.end is not None for record in records)
    label = "labels" if has_several_labels(records) else "label"
    index = [("path", label, "frames", *(("start", "end") if timed else ()), *cells[0])]
    for (path, record, finding), further in zip(pairs, cells, strict=True):
        times = (record.start, record.end) if timed else ()
        if finding.usable:
            text = label_text(record.label, classes)
            index.append((path, text, finding.frames, *times, *further.values()))
    write_csv(output / "index.csv", index)


def _beside(index: Path) -> Path:
    """The folder of the report: next to a list or a folder, so that it is no class of the data."""
    index = index.resolve() if index.name in ("", "..") else index
    return index.with_name(f"{index.stem}.check")


def _show(output: Path, records: Sequence[Record], findings: Sequence[Finding]) -> None:
    odd = [finding for finding in findings if finding.status != "ok"]
    for finding in odd[:20]:
        path = without_password(records[finding.index].path)
        print(printable(f"{finding.status:<5} {path}: {finding.cause}"))
    if len(odd) > 20:
        print(f"… and {len(odd) - 20} more in {output / 'report.csv'}")
    counts = Counter(finding.status for finding in findings)
    frames = sum(finding.frames or 0 for finding in findings)
    print(f"{len(findings)} videos, {frames} frames:")
    for status, meaning in MEANING.items():
        if counts[status]:
            print(f"  {counts[status]:>7} {status:<5} {meaning}")
    print(f"{output}: report.csv, exclude.txt, and index.csv with the usable videos")
