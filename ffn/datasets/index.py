"""Write the index of a data set: one csv per split, class names, a fingerprint, problems."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from ffn.data.decoding import VideoMetadata
from ffn.data.lists import TEXT
from ffn.datasets.listing import Entry, Listing
from ffn.datasets.mirror import mirror_pairs, mirror_problems
from ffn.files import printable, write_csv, write_text

COLUMNS = ("frames", "fps", "duration", "width", "height")
DESCRIPTION = "dataset.json"


def claim_index(output: Path, overwrite: bool) -> None:
    """Refuse a folder that holds an index, without `overwrite`, or other files.

    Raises:
        FileExistsError: if it does.
    """
    if not output.exists() or not any(output.iterdir()):
        return
    if not (output / DESCRIPTION).is_file():
        raise FileExistsError(f"{output} holds other files; name another folder with --output")
    if not overwrite:
        raise FileExistsError(
            f"{output} holds an index already. Replace it with --overwrite, or name another folder "
            "with --output"
        )


def write_index(
    output: Path,
    listing: Listing,
    entries: Sequence[Entry],
    facts: Mapping[str, VideoMetadata],
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
    files: list[str] = []
    for split in listing.splits:
        chosen = [entry for entry in entries if entry.split == split]
        if chosen:  # an empty list cannot be read
            files.append(f"{split}.csv")
            (output / files[-1]).parent.mkdir(parents=True, exist_ok=True)
            kind = "label" if listing.classes_of(split) else TEXT
            write_csv(output / files[-1], _rows(chosen, facts, kind))
    for fold, names in (listing.fold_classes or {"": listing.classes}).items():
        if names:
            files.append(str(PurePosixPath(fold, "classes.txt")))
            write_text(output / files[-1], "".join(f"{name}\n" for name in names))
    pairs, unpaired = mirror_pairs(listing.classes), mirror_problems(listing.classes)
    if pairs:
        files.append("flip_pairs.yaml")
        write_text(output / files[-1], _flip_config(pairs, unpaired))
    files.append("problems.csv")
    problems = [(p.kind, p.split, printable(p.name), printable(p.detail)) for p in listing.problems]
    write_csv(output / files[-1], [("kind", "split", "name", "detail"), *problems])
    for path in _stale_files(output, files):
        path.unlink(missing_ok=True)

    content = {
        **description,
        "date": date.today().isoformat(),
        "files": files,
        "notes": listing.notes,
        "problems": dict(sorted(Counter(kind for kind, *_ in problems).items())),
        "flip": {"pairs": pairs, "unpaired": unpaired},
        "listed": dict(Counter(entry.split for entry in listing.entries)),
        "fingerprint": fingerprint(listing, entries),
    }
    write_text(output / DESCRIPTION, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content


def fingerprint(listing: Listing, entries: Sequence[Entry]) -> dict[str, Any]:
    """Identify a version of a data set: numbers of videos, classes, and a SHA-256.

    The SHA-256 covers the sorted lines "split, name, label" of the index. Names are those of the
    official lists, so the paths of the files do not matter.
    """
    lines = sorted(f"{entry.split}\t{entry.name}\t{entry.label}\n" for entry in entries)
    per_class, videos = {}, Counter(entry.split for entry in entries)
    for split in listing.splits:
        labels = Counter(entry.label for entry in entries if entry.split == split)
        per_class[split] = {name: labels[name] for name in listing.classes_of(split)}
    return {
        "videos": {split: videos[split] for split in listing.splits},
        "videos_per_class": per_class,
        "classes": listing.classes,
        "sha256": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }


def list_path(path: Path, root: Path) -> str:
    """A path of the index: relative to the root with `/`, absolute if it is outside."""
    return PurePosixPath(path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _rows(
    entries: Sequence[Entry], facts: Mapping[str, VideoMetadata], kind: str
) -> Iterator[tuple[Any, ...]]:
    timed = any(entry.start is not None or entry.end is not None for entry in entries)
    grouped = any(entry.group is not None for entry in entries)
    header = ("path", kind, *COLUMNS)
    yield (*header, *(("start", "end") if timed else ()), *(("group",) if grouped else ()))
    for entry in entries:
        one = facts[entry.path]
        cells = (one.frames, _number(one.fps), _number(one.duration), one.width, one.height)
        times = (_exact(entry.start), _exact(entry.end)) if timed else ()
        group = (entry.group or "",) if grouped else ()
        yield (entry.path, entry.label, *cells, *times, *group)


def _exact(value: float | None) -> str:
    """A time, by which a store finds the clip: all digits of it."""
    return "" if value is None else repr(float(value)).removesuffix(".0")


def _number(value: float) -> str:
    """A number with at most three decimals, without trailing zeros; "" for 0, which is unknown."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else ""


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


def _stale_files(output: Path, files: Sequence[str]) -> list[Path]:
    """Files of the replaced index, which its `dataset.json` names, that are not in `files`."""
    try:
        named = json.loads((output / DESCRIPTION).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return []
    paths = [(output / name).resolve() for name in named if name not in files]
    return [path for path in paths if path.is_relative_to(output.resolve())]
