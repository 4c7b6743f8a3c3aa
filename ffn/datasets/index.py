"""Write the index of a data set: one csv per split, class names, a fingerprint, problems."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from ffn.datasets.facts import VideoFacts
from ffn.datasets.listing import Entry, Listing, Problem
from ffn.datasets.mirror import mirror_pairs, mirror_problems
from ffn.files import write_text

COLUMNS = ("path", "label", "frames", "fps", "duration", "width", "height")
DESCRIPTION = "dataset.json"


def claim_index(output: Path, splits: Iterable[str], overwrite: bool) -> None:
    """Refuse to overwrite an existing index without `overwrite`, and other files always.

    Args:
        output: Folder of the index.
        splits: Names of the splits.
        overwrite: Replace the files that the `dataset.json` of the folder names.

    Raises:
        FileExistsError: if a file of the index exists.
    """
    names = [f"{split}.csv" for split in splits]
    names += ["classes.txt", "flip_pairs.yaml", "problems.csv", DESCRIPTION]
    existing = [name for name in names if (output / name).exists()]
    own = previous_files(output)
    others = [name for name in existing if name not in own]
    if others:
        raise FileExistsError(
            f"{output} holds other files ({', '.join(others)}) with the names of those of an "
            "index; they are not replaced. Name another folder with --output"
        )
    if existing and not overwrite:
        raise FileExistsError(
            f"{output} holds an index already ({', '.join(existing)}). Replace it with "
            "--overwrite, or name another folder with --output"
        )


def write_index(
    output: Path,
    listing: Listing,
    entries: Sequence[Entry],
    facts: Mapping[str, VideoFacts],
    description: Mapping[str, Any],
) -> dict[str, Any]:
    """Write all files of an index; `dataset.json` is written last.

    Args:
        output: Folder of the index.
        listing: Splits, classes, problems and notes.
        entries: Entries of the index, each with a path in `facts`.
        facts: Facts by path.
        description: First keys of `dataset.json`.

    Returns:
        The content of `dataset.json`.
    """
    old, files = previous_files(output), []
    for split in listing.splits:
        chosen = [entry for entry in entries if entry.split == split]
        if chosen:  # an empty list cannot be read
            files.append(f"{split}.csv")
            (output / files[-1]).parent.mkdir(parents=True, exist_ok=True)
            write_text(output / files[-1], _table(chosen, facts))
    files.append("classes.txt")
    write_text(output / "classes.txt", "".join(f"{name}\n" for name in listing.classes))
    pairs, unpaired = mirror_pairs(listing.classes), mirror_problems(listing.classes)
    if pairs:
        files.append("flip_pairs.yaml")
        write_text(output / files[-1], _flip_config(pairs, unpaired))
    files.append("problems.csv")
    write_text(output / files[-1], _problem_table(listing.problems))
    for name in sorted(old - {*files, DESCRIPTION}):
        (output / name).unlink(missing_ok=True)

    content = {
        **description,
        "date": date.today().isoformat(),
        "files": files,
        "notes": listing.notes,
        "problems": dict(sorted(Counter(problem.kind for problem in listing.problems).items())),
        "flip": {"pairs": pairs, "unpaired": unpaired},
        "fingerprint": fingerprint(listing, entries, facts),
    }
    write_text(output / DESCRIPTION, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content


def fingerprint(
    listing: Listing, entries: Sequence[Entry], facts: Mapping[str, VideoFacts]
) -> dict[str, Any]:
    """Identify a version of a data set: counts, lengths, classes, and a SHA-256.

    The SHA-256 covers the sorted lines "split, name, label" of the index. Names are those of the
    official lists, so the paths of the files do not matter.
    """
    by_split = {split: [e for e in entries if e.split == split] for split in listing.splits}
    lines = sorted(f"{entry.split}\t{entry.name}\t{entry.label}\n" for entry in entries)
    return {
        "videos": {split: len(chosen) for split, chosen in by_split.items()},
        "videos_per_class": {
            split: _count_labels(chosen, listing.classes) for split, chosen in by_split.items()
        },
        "frames": {
            split: length_histogram([facts[entry.path].frames for entry in chosen])
            for split, chosen in by_split.items()
        },
        "classes": listing.classes,
        "sha256": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }


def length_histogram(frames: Iterable[int]) -> dict[str, int]:
    """Number of videos by frame count, in octaves: `{"32-63": 5, "64-127": 2}`."""
    octaves = Counter(count.bit_length() - 1 for count in frames)
    return {f"{2**o}-{2 ** (o + 1) - 1}": octaves[o] for o in sorted(octaves)}


def _count_labels(entries: Iterable[Entry], classes: Iterable[str]) -> dict[str, int]:
    """Number of videos by class, in the order of the classes."""
    counted = Counter(entry.label for entry in entries)
    return {name: counted[name] for name in classes}


def list_path(path: Path, root: Path) -> str:
    """A path of the index: relative to the root with `/`, absolute if it is outside."""
    return PurePosixPath(path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _table(entries: Sequence[Entry], facts: Mapping[str, VideoFacts]) -> str:
    timed = any(entry.start is not None or entry.end is not None for entry in entries)
    grouped = any(entry.group is not None for entry in entries)
    rows = [(*COLUMNS, *(("start", "end") if timed else ()), *(["group"] if grouped else []))]
    for entry in entries:
        one = facts[entry.path]
        cells = (one.frames, _number(one.fps), _number(one.duration), one.width, one.height)
        times = (_exact(entry.start), _exact(entry.end)) if timed else ()
        group = (entry.group or "",) if grouped else ()
        rows.append((entry.path, entry.label, *cells, *times, *group))
    return csv_text(rows)


def _problem_table(problems: Iterable[Problem]) -> str:
    rows = [(p.kind, p.split, p.name, p.detail) for p in problems]
    return csv_text([("kind", "split", "name", "detail"), *rows])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as csv; bytes of a name that are not UTF-8 are escaped."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _exact(value: float | None) -> str:
    """A time, by which a store finds the clip: all digits of it."""
    return "" if value is None else repr(float(value)).removesuffix(".0")


def _number(value: float | None) -> str:
    """A number with at most three decimals, without trailing zeros."""
    return "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def _flip_config(pairs: Sequence[tuple[str, str]], unpaired: Sequence[str]) -> str:
    """The `data:` section of a config; a JSON string is a YAML string."""
    lines = ["# Classes that a horizontal flip exchanges, found by name. Please check."]
    if unpaired:
        lines += [
            "# The mirror images of these are not classes; a flip gives them a wrong label:",
            *(f"#   {name}" for name in unpaired),
        ]
    lines += ["data:", "  flip: swap", "  flip_pairs:"]
    lines += [f"    - {json.dumps(pair, ensure_ascii=False)}" for pair in pairs]
    return "\n".join(lines) + "\n"


def previous_files(output: Path) -> set[str]:
    """Files of the existing index with its `dataset.json`, which names them; empty without it."""
    try:
        named = json.loads((output / DESCRIPTION).read_text(encoding="utf-8"))["files"]
        names = {name for name in named if name.endswith((".csv", ".txt", ".yaml"))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    inside = {name for name in names if not PurePosixPath(name).is_absolute() and ".." not in name}
    return inside | {DESCRIPTION}
