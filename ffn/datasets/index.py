"""The index that preparation writes: one csv per split, class names, a fingerprint, problems."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from ffn.datasets.disk import JOURNAL
from ffn.datasets.facts import VideoFacts
from ffn.datasets.listing import Entry, Listing, Problem, count_labels
from ffn.datasets.mirror import mirror_pairs, mirror_problems

COLUMNS = ("path", "label", "frames", "fps", "duration", "width", "height")
DESCRIPTION = "dataset.json"


def claim(output: Path, splits: Iterable[str], overwrite: bool) -> None:
    """Make sure that nothing a user made, or an earlier index, is overwritten unasked.

    An interrupted preparation has left its journal and no description: it is continued.

    Raises:
        FileExistsError: if a file of the index exists already.
    """
    interrupted = (output / JOURNAL).exists() and not (output / DESCRIPTION).exists()
    if overwrite or interrupted:
        return
    names = [f"{split}.csv" for split in splits] + ["classes.txt", "flip_pairs.yaml", DESCRIPTION]
    there = [name for name in names if (output / name).exists()]
    if there:
        raise FileExistsError(
            f"{output} holds an index already ({', '.join(there)}); --overwrite replaces it, "
            "--output writes another one"
        )


def write_index(
    output: Path,
    listing: Listing,
    entries: Sequence[Entry],
    facts: Mapping[str, VideoFacts],
    description: Mapping[str, Any],
) -> dict[str, Any]:
    """Write all files of an index; the description comes last and makes it whole.

    Args:
        output: Folder.
        listing: Splits, classes, problems and notes.
        entries: What the index lists, each with a path among `facts`.
        facts: By path.
        description: Begin of `dataset.json`.

    Returns:
        The content of `dataset.json`.
    """
    old = _former_files(output)
    (output / DESCRIPTION).unlink(missing_ok=True)  # so that half an index is not taken for one
    files = []
    for split in listing.splits:
        chosen = [entry for entry in entries if entry.split == split]
        if chosen:  # a list without a line cannot be read
            files.append(f"{split}.csv")
            write_text(output / files[-1], _table(chosen, facts))
    files.append("classes.txt")
    write_text(output / "classes.txt", "".join(f"{name}\n" for name in listing.classes))
    pairs, unpaired = mirror_pairs(listing.classes), mirror_problems(listing.classes)
    if pairs:
        files.append("flip_pairs.yaml")
        write_text(output / files[-1], _flip_config(pairs, unpaired))
    files.append("problems.csv")
    write_text(output / files[-1], _problem_table(listing.problems))
    for name in sorted(old - set(files)):
        (output / name).unlink(missing_ok=True)

    whole = {
        **description,
        "date": date.today().isoformat(),
        "files": files,
        "notes": listing.notes,
        "problems": dict(sorted(Counter(problem.kind for problem in listing.problems).items())),
        "flip": {"pairs": pairs, "unpaired": unpaired},
        "fingerprint": fingerprint(listing, entries, facts),
    }
    write_text(output / DESCRIPTION, json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    return whole


def fingerprint(
    listing: Listing, entries: Sequence[Entry], facts: Mapping[str, VideoFacts]
) -> dict[str, Any]:
    """What tells two copies of a data set apart: counts, lengths, classes, and a SHA-256.

    The hash is over the sorted lines "split, name, label" of what the index lists. Names are those
    of the official lists, so it does not depend on where the files lie.
    """
    by_split = {split: [e for e in entries if e.split == split] for split in listing.splits}
    lines = sorted(f"{entry.split}\t{entry.name}\t{entry.label}\n" for entry in entries)
    return {
        "videos": {split: len(chosen) for split, chosen in by_split.items()},
        "videos_per_class": {
            split: count_labels(chosen, listing.classes) for split, chosen in by_split.items()
        },
        "frames": {
            split: length_histogram([facts[entry.path].frames for entry in chosen])
            for split, chosen in by_split.items()
        },
        "classes": listing.classes,
        "sha256": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }


def length_histogram(frames: Iterable[int]) -> dict[str, int]:
    """Videos per length, in octaves: `{"32-63": 5, "64-127": 2}`."""
    octaves = Counter(count.bit_length() - 1 for count in frames)
    return {f"{2**o}-{2 ** (o + 1) - 1}": octaves[o] for o in sorted(octaves)}


def write_text(path: Path, text: str) -> None:
    """Write a file so that it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    os.replace(partial, path)


def list_path(path: Path, root: Path) -> str:
    """A path as the index has it: relative to the root with `/`, absolute if it lies elsewhere."""
    return PurePosixPath(path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _table(entries: Sequence[Entry], facts: Mapping[str, VideoFacts]) -> str:
    timed = any(entry.start is not None or entry.end is not None for entry in entries)
    rows = [(*COLUMNS, *(("start", "end") if timed else ()))]
    for entry in entries:
        one = facts[entry.path]
        cells = (one.frames, _number(one.fps), _number(one.duration), one.width, one.height)
        times = (_number(entry.start), _number(entry.end)) if timed else ()
        rows.append((entry.path, entry.label, *cells, *times))
    return csv_text(rows)


def _problem_table(problems: Iterable[Problem]) -> str:
    rows = [(p.kind, p.split, p.name, p.detail) for p in problems]
    return csv_text([("kind", "split", "name", "detail"), *rows])


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as csv; what is no UTF-8 in a name is written as its escape."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace").decode()


def _number(value: float | None) -> str:
    """At most three decimals, and none that say nothing."""
    return "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")


def _flip_config(pairs: Sequence[tuple[str, str]], unpaired: Sequence[str]) -> str:
    """The `data:` part of a config; JSON strings are yaml strings."""
    lines = ["# Classes that a horizontal flip exchanges, found by their names; check them."]
    if unpaired:
        lines += [
            "# The mirror image of these is not a class, so flipped films of them are mislabelled:",
            *(f"#   {name}" for name in unpaired),
        ]
    lines += ["data:", "  flip: swap", "  flip_pairs:"]
    lines += [f"    - {json.dumps(pair, ensure_ascii=False)}" for pair in pairs]
    return "\n".join(lines) + "\n"


def _former_files(output: Path) -> set[str]:
    """Files of the index that stands there, by its own description."""
    try:
        named = json.loads((output / DESCRIPTION).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    ours = (".csv", ".txt", ".yaml")
    names = {name for name in named if isinstance(name, str) and name.endswith(ours)}
    return {n for n in names if not Path(n).is_absolute() and ".." not in Path(n).parts}
