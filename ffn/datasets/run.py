"""Prepare a data set: read its lists, look at every file, write the index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ffn.data.annotations import Record
from ffn.data.decoding import PATTERN
from ffn.data.decoding.folder import check_pattern
from ffn.data.store import PackReport
from ffn.data.store.layout import key_of
from ffn.data.workers import TIMEOUT
from ffn.datasets.actions import hmdb51, ucf101
from ffn.datasets.convert import Conversion, Part, claim_folder, convert_all
from ffn.datasets.disk import JOURNAL, Inventory, scan
from ffn.datasets.facts import Journal, VideoFacts, gather
from ffn.datasets.folders import Division, read_folder
from ffn.datasets.index import claim, write_index
from ffn.datasets.kinetics import read_kinetics, settle_times
from ffn.datasets.listing import (
    Entry,
    Listing,
    PreparationError,
    Problem,
    check,
    find_empty_classes,
)
from ffn.datasets.something import jester, sthv1, sthv2

DATASETS: dict[str, Callable[[Inventory, Inventory], Listing] | None] = {
    "sthv1": sthv1,
    "sthv2": sthv2,
    "k400": partial(read_kinetics, count=400),
    "k600": partial(read_kinetics, count=600),
    "k700": partial(read_kinetics, count=700),
    "hmdb51": hmdb51,
    "ucf101": ucf101,
    "jester": jester,
    "folder": None,  # read with a division
}

Progress = Callable[[str, int, int], None]
Packing = Callable[[list[Record]], PackReport]


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Numbers of one split: videos in its list, of these on disk, and so on.

    Attributes:
        name: As `train` or `split1/val`.
        listed: Lines of the list.
        found: Of these on disk.
        missing: Of these not on disk.
        unreadable: On disk, but not to be read.
        indexed: In the csv.
        classes: Classes with a video in the csv.
    """

    name: str
    listed: int
    found: int
    missing: int
    unreadable: int
    indexed: int
    classes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a preparation found and wrote.

    Attributes:
        output: Folder of the index.
        splits: Numbers of each split.
        classes: Class names in the order of their indices.
        problems: What is wrong, as in `problems.csv`.
        notes: What is worth knowing, but not wrong.
        description: Content of `dataset.json`.
    """

    output: Path
    splits: list[SplitSummary]
    classes: list[str]
    problems: list[Problem]
    notes: list[str]
    description: dict[str, Any]


def prepare(
    dataset: str,
    root: str | Path,
    *,
    output: str | Path | None = None,
    annotations: str | Path | None = None,
    videos: str | Path | None = None,
    division: Division | None = None,
    conversion: Conversion | None = None,
    pattern: str = PATTERN,
    verify: bool = False,
    overwrite: bool = False,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
    packing: Packing | None = None,
) -> Summary:
    """Write the index of a data set: csv per split, class names, fingerprint, problems.

    Args:
        dataset: One of `DATASETS`.
        root: Folder of the data set; paths of the index start from it.
        output: Folder of the index; default `index` under the root.
        annotations: Folder of the official lists; default: searched for under the root.
        videos: Folder below the root that alone is searched for videos, if there are more copies.
        division: How to divide videos of the data set `folder` that have no splits; default
            `Division()`.
        conversion: Copies to make; the index then lists these.
        pattern: Name of a frame in a frame folder.
        verify: Decode every frame of every video, and count those.
        overwrite: Replace an index that stands there.
        workers: Processes; 0 works in this one.
        timeout: Seconds that a video may take in a process; then it is a problem.
        progress: Called with (what, done, all).
        packing: Packs the videos that the index will list; what it cannot read becomes a problem.
            It comes before the index is written, so that an interrupted preparation goes on.

    Raises:
        PreparationError: if it cannot be done at all.
        FileExistsError: if something would be overwritten.
        NotADirectoryError: if `videos` is no folder below the root.
        ValueError: if the pattern has no single place for a number.
    """
    root = Path(root).absolute()
    if dataset not in DATASETS:
        raise PreparationError(f"unknown data set {dataset!r}; expected one of {list(DATASETS)}")
    if not root.is_dir():
        raise PreparationError(f"{root} is no folder; name the folder of the data set with --root")
    check_pattern(pattern)
    output = root / "index" if output is None else Path(output).absolute()
    skip = [output] if conversion is None else [output, conversion.folder]
    disk = scan(root, skip)
    if videos is not None:
        disk = disk.within(videos)
    listing = _read(dataset, disk, annotations, division)
    usable = check(listing, disk)
    if not usable:
        _explain_nothing(listing, disk)
    claim(output, listing.splits, overwrite)
    if conversion is not None:
        claim_folder(conversion, root)
    output.mkdir(parents=True, exist_ok=True)

    from filelock import FileLock, Timeout

    lock = FileLock(output / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FileExistsError(f"another preparation is writing {output}; wait for it") from None
    options = {"workers": workers, "timeout": timeout}
    try:
        journal = Journal(output / JOURNAL, root, pattern)
        shown = partial(progress, "reading") if progress else None
        facts, found = _look(listing, usable, journal, verify=verify, progress=shown, **options)
        if conversion is not None:
            shown = partial(progress, "copying") if progress else None
            converted = convert_all(
                conversion, found, facts, root, pattern=pattern, progress=shown, **options
            )
            facts, found = _copied(listing, found, *converted)
        if not found:
            raise PreparationError(
                f"none of the {len(usable)} videos can be read; the first: "
                f"{_first_cause(listing.problems)}"
            )
        if packing is not None:
            found = _packed(listing, found, facts, root, packing)
        find_empty_classes(listing, found)
        listing.problems.sort()
        about = {"dataset": dataset, "verified": verify}
        if conversion is not None:
            about["copies"] = conversion.settings()
        description = write_index(output, listing, found, facts, about)
    finally:
        lock.release()
    summaries = [_summary(listing, split, usable, found) for split in listing.splits]
    return Summary(output, summaries, listing.classes, listing.problems, listing.notes, description)


def _read(
    dataset: str, disk: Inventory, annotations: str | Path | None, division: Division | None
) -> Listing:
    read = DATASETS[dataset]
    if read is None:
        if annotations is not None:
            raise PreparationError("the data set folder has no lists; leave --annotations out")
        return read_folder(disk, division)
    if division is not None:
        raise PreparationError(f"{dataset} has official splits; it is not divided otherwise")
    lists = disk
    if annotations is not None:
        folder = Path(annotations).absolute()
        if not folder.is_dir():
            raise PreparationError(f"the folder of annotations {folder} does not exist")
        lists = scan(folder)
    return read(disk, lists)


def _look(
    listing: Listing, usable: list[Entry], journal: Journal, **options: Any
) -> tuple[dict[str, VideoFacts], list[Entry]]:
    """Facts by path, and the entries that can be read; the others become problems."""
    try:
        outcomes = gather(journal, [entry.path for entry in usable], **options)
    finally:
        journal.close()
    found = []
    for entry in usable:
        outcome = outcomes[entry.path]
        if not isinstance(outcome, VideoFacts):
            listing.add("unreadable", entry.split, entry.name, _at(entry, outcome))
            continue
        if entry.times is not None and outcome.duration is not None:
            wrong = settle_times(entry, outcome.duration)
            if wrong is not None:
                listing.add("times", entry.split, entry.name, _at(entry, wrong))
                continue
        found.append(entry)
    return {path: one for path, one in outcomes.items() if isinstance(one, VideoFacts)}, found


def _copied(
    listing: Listing,
    found: list[Entry],
    copies: list[Entry],
    facts: dict[str, VideoFacts],
    failed: dict[Part, str],
) -> tuple[dict[str, VideoFacts], list[Entry]]:
    """Facts and entries of the copies; what could not be copied becomes a problem."""
    for entry in found:
        part = (entry.path, entry.start, entry.end)
        if part in failed:
            cause = _at(entry, failed[part])
            listing.add("conversion", entry.split, entry.name, cause)
    return facts, copies


def _packed(
    listing: Listing,
    found: list[Entry],
    facts: dict[str, VideoFacts],
    root: Path,
    packing: Packing,
) -> list[Entry]:
    """Entries whose videos were packed; the others become problems."""
    index = {name: i for i, name in enumerate(listing.classes)}
    records = [
        Record(str(root / e.path), index[e.label], facts[e.path].frames, e.start, e.end)
        for e in found
    ]
    names = [(key_of(r.path, str(root)), r.start, r.end) for r in records]
    reasons = {one[:3]: one.reason for one in packing(records).unreadable}
    for entry, name in zip(found, names, strict=True):
        if name in reasons:
            listing.add("packing", entry.split, entry.name, _at(entry, reasons[name]))
    return [entry for entry, name in zip(found, names, strict=True) if name not in reasons]


def _at(entry: Entry, cause: str) -> str:
    """A cause with the path of the file, unless the name of the video says it already."""
    return cause if entry.name == entry.path else f"{entry.path}: {cause}"


def _summary(listing: Listing, split: str, usable: list[Entry], found: list[Entry]) -> SplitSummary:
    kinds = [problem.kind for problem in listing.problems if problem.split == split]
    indexed = [entry for entry in found if entry.split == split]
    return SplitSummary(
        name=split,
        listed=len(listing.of(split)),
        found=sum(entry.split == split for entry in usable),
        missing=kinds.count("missing"),
        unreadable=kinds.count("unreadable"),
        indexed=len(indexed),
        classes=len({entry.label for entry in indexed}),
    )


def _explain_nothing(listing: Listing, disk: Inventory) -> None:
    there = f"{len(disk.videos)} video files and {len(disk.folders)} frame folders"
    raise PreparationError(
        f"none of the {len(listing.entries)} listed videos can be used: {disk.root} holds {there}; "
        f"the first problem: {_first_cause(listing.problems)}"
    )


def _first_cause(problems: list[Problem]) -> str:
    first = next((p for p in problems if p.kind not in ("unlisted", "class")), None)
    return f"{first.name}: {first.detail}" if first else "the lists are empty"
