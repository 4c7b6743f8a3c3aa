"""Prepare a data set: read its lists, read the facts of every video, write the index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffn.data.decoding import PATTERN, VideoMetadata, check_pattern
from ffn.data.workers import TIMEOUT
from ffn.datasets.copies import CopySettings, claim_copies, copy_all
from ffn.datasets.disk import Inventory, scan
from ffn.datasets.facts import read_all
from ffn.datasets.index import claim_index, write_index
from ffn.datasets.listing import (
    DATASETS,
    Entry,
    Listing,
    PreparationError,
    Problem,
    check,
    find_empty_classes,
)
from ffn.datasets.splits import SplitSettings, find_groups, split_entries
from ffn.labels import canonical


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a preparation.

    Attributes:
        output: Folder of the index.
        classes: Class names in the order of their indices.
        problems: Rows of `problems.csv`.
        notes: Remarks that are not problems.
        description: Content of `dataset.json`.
    """

    output: Path
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
    split: SplitSettings | None = None,
    copies: CopySettings | None = None,
    pattern: str = PATTERN,
    verify: bool = False,
    overwrite: bool = False,
    workers: int = 0,
    timeout: float = TIMEOUT,
    progress: bool = False,
) -> Summary:
    """Write the index of a data set: csv per split, class names, fingerprint, problems.

    Args:
        dataset: A name in `DATASETS`.
        root: Folder of the videos; the paths of the index are relative to it.
        output: Folder of the index; default `index` under the root.
        annotations: Folder of the official lists; default: searched for under the root.
        split: How to split videos without official splits; default `SplitSettings()`.
        copies: Copies to make; the index then lists the copies.
        pattern: File name of a frame in a frame folder.
        verify: Decode every frame of every video and count the frames.
        overwrite: Replace an existing index.
        workers: Number of processes; 0 runs in this process.
        timeout: Seconds per video; a video that takes longer is a problem. No effect with 0
            workers.
        progress: Show progress bars.

    Raises:
        PreparationError: if the data set cannot be prepared.
        FileExistsError: if a file would be overwritten.
        ValueError: if the timeout is out of range, or the pattern has not exactly one field for a
            number.
    """
    check_pattern(pattern)
    root = Path(root).absolute()
    output = root / "index" if output is None else Path(output).absolute()
    disk = _search(root, output, [] if copies is None else [copies.folder])
    lists = disk if annotations is None else scan(Path(annotations).absolute())
    listing = _read_lists(dataset, disk, lists, split)
    usable = check(listing, disk)
    if not usable:
        raise PreparationError(
            f"none of the {len(listing.entries)} listed videos can be used: {root} holds "
            f"{len(disk.videos)} video files and {len(disk.folders)} frame folders; the first "
            f"problem: {_first_cause(listing.problems)}"
        )
    claim_index(output, overwrite)
    if copies is not None:
        claim_copies(copies, root)

    options = {"pattern": pattern, "workers": workers, "timeout": timeout, "progress": progress}
    facts, found = _read_facts(listing, usable, root, verify=verify, **options)
    if copies is not None:
        facts, found = _copy(listing, found, facts, copies, root, **options)
    if not found:
        raise PreparationError(
            f"none of the {len(usable)} videos can be read; the first problem: "
            f"{_first_cause(listing.problems)}"
        )
    if not listing.splits:
        split_entries(listing, found, split or SplitSettings())
    find_empty_classes(listing, found)
    listing.problems.sort()
    about = {"dataset": dataset, "verified": verify}
    if copies is not None:
        about["copies"] = copies.to_dict()
    output.mkdir(parents=True, exist_ok=True)
    description = write_index(output, listing, found, facts, about)
    return Summary(output, listing.classes, listing.problems, listing.notes, description)


def _search(root: Path, output: Path, skip: list[Path]) -> Inventory:
    """The files of the data set, without those of the index and in the folders to skip.

    Raises:
        PreparationError: if the folder of the index holds videos.
    """
    inside = scan(output, skip) if output.is_dir() and output.is_relative_to(root) else None
    if inside is not None and (inside.videos or inside.folders):
        raise PreparationError(
            f"the folder of the index, {output}, holds videos "
            f"({[*inside.videos, *inside.folders][0]}), which would be left out; name another one "
            "with --output"
        )
    return scan(root, [*skip, output])


def _read_lists(
    dataset: str, disk: Inventory, lists: Inventory, split: SplitSettings | None
) -> Listing:
    try:
        read = DATASETS[dataset]
    except KeyError as error:
        raise PreparationError(error.args[0]) from None
    listing = read(disk, lists)
    if not isinstance(listing, Listing):
        raise PreparationError(
            f"the function of the data set {dataset} returned {type(listing).__name__}; expected "
            "ffn.datasets.Listing"
        )
    listing.classes = _canonical(listing.classes)
    listing.fold_classes = {k: _canonical(names) for k, names in listing.fold_classes.items()}
    for entry in listing.entries:
        entry.label = canonical(entry.label)
    if listing.splits and split is not None:
        raise PreparationError(
            f"{dataset} has splits ({', '.join(listing.splits)}) and is not split at random; leave "
            "out the fraction, the group pattern and the seed"
        )
    if split is not None and split.group_pattern is not None:
        find_groups(listing, split.group_pattern)
    return listing


def _canonical(names: list[str]) -> list[str]:
    return [*dict.fromkeys(map(canonical, names))]


def _read_facts(
    listing: Listing, usable: list[Entry], root: Path, **options: Any
) -> tuple[dict[str, VideoMetadata], list[Entry]]:
    """Facts by path, and the readable entries; the other entries become problems."""
    results = read_all([entry.path for entry in usable], root, **options)
    found, reported = [], set()
    for entry in usable:
        result = results[entry.path]
        if not isinstance(result, VideoMetadata):
            if entry.path not in reported:  # once, also if several folds have it
                cause = _with_path(entry, result)
                listing.add_problem("unreadable", entry.split, entry.name, cause)
            reported.add(entry.path)
            continue
        if entry.times is not None and result.duration:
            wrong = entry.resolve_times(result.duration)
            if wrong is not None:
                listing.add_problem("times", entry.split, entry.name, _with_path(entry, wrong))
                continue
        found.append(entry)
    return {path: one for path, one in results.items() if isinstance(one, VideoMetadata)}, found


def _copy(
    listing: Listing,
    found: list[Entry],
    facts: dict[str, VideoMetadata],
    copies: CopySettings,
    root: Path,
    **options: Any,
) -> tuple[dict[str, VideoMetadata], list[Entry]]:
    """Copy the videos; returns facts and entries of the copies, failures become problems."""
    results = copy_all(copies, found, facts, root, **options)
    copied, entries = {}, []
    for entry in found:
        result = results[entry.path, entry.start, entry.end]
        if isinstance(result, str):
            listing.add_problem("conversion", entry.split, entry.name, _with_path(entry, result))
        else:
            entry.path, copied_facts = result
            entry.start = entry.end = None
            copied[entry.path] = copied_facts
            entries.append(entry)
    return copied, entries


def _with_path(entry: Entry, cause: str) -> str:
    """A cause after the path of the file, unless the entry is named by its path."""
    return cause if entry.name == entry.path else f"{entry.path}: {cause}"


def _first_cause(problems: list[Problem]) -> str:
    first = next((p for p in problems if p.kind not in ("unlisted", "class")), None)
    return f"{first.name}: {first.detail}" if first else "the lists are empty"
