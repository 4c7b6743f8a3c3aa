"""Data sets `sthv1`, `sthv2`, `jester`: Something-Something V1 and V2, and Jester.

Videos are named by a number. V1 and Jester are frame folders with lists `id;label`; V2 is webm
files with lists in JSON. Later releases use shorter names and add `test-answers.csv`; one release
of Jester has comma-separated lists with a header. Test lists of the first releases have no labels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ffn.datasets.disk import Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import find_lists, read_lines, read_rows, read_text

# Video name, label or None, position in the list.
Rows = Iterator[tuple[str, str | None, str]]

_FOLDERS = {"train": ("train",), "val": ("validation", "val"), "test": ("test",)}


@register_dataset("sthv1")
def sthv1(videos: Inventory, lists: Inventory) -> Listing:
    """Read Something-Something V1."""
    names = "something-something-v1-{}\\.csv"
    patterns = {role: names.format(role) for role in ("labels", "train", "validation", "test")}
    found = find_lists(lists, patterns, ("labels", "train"), "Something-Something V1")
    classes = [row[0] for _, row in read_rows(found["labels"], ";")]
    return _listing(videos, found, classes, _semicolon_rows)


@register_dataset("sthv2")
def sthv2(videos: Inventory, lists: Inventory) -> Listing:
    """Read Something-Something V2, either release."""
    names = "(?:something-something-v2-)?{}"
    patterns = {
        role: names.format(f"{role}\\.json") for role in ("labels", "train", "validation", "test")
    }
    patterns["answers"] = names.format("test-answers\\.csv")
    found = find_lists(lists, patterns, ("labels", "train"), "Something-Something V2")
    return _listing(videos, found, _json_classes(found["labels"]), _template_rows)


@register_dataset("jester")
def jester(videos: Inventory, lists: Inventory) -> Listing:
    """Read Jester, any release."""
    names = "(?:jester-v1-)?{}\\.csv"
    patterns = {role: names.format(role) for role in ("labels", "train", "validation", "test")}
    patterns["answers"] = names.format("test-answers")
    found = find_lists(lists, patterns, ("train",), "Jester")
    if "labels" in found:
        classes = [line for _, line in read_lines(found["labels"])]
    else:
        classes = _header_classes(found["train"])
    return _listing(videos, found, classes, _jester_rows)


def _listing(
    videos: Inventory, found: dict[str, Path], classes: list[str], read: Callable[[Path], Rows]
) -> Listing:
    """Combine the lists; the labels of a test list come from the answers."""
    twice = sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise PreparationError(f"{found['labels']} lists the class {twice[0]!r} twice")
    listing = Listing(classes, [])
    for split, role in (("train", "train"), ("val", "validation"), ("test", "test")):
        if role in found:
            rows = list(read(found[role]))
            if role == "test" and "answers" in found:
                answers = {name: row for name, *row in _semicolon_rows(found["answers"])}
                rows = [(row[0], *answers.get(row[0], row[1:])) for row in rows]
            _add(listing, videos, split, rows, found[role])
    if "validation" not in found:
        listing.notes.append("there is no validation list, so no val.csv")
    return listing


def _add(
    listing: Listing,
    videos: Inventory,
    split: str,
    rows: list[tuple[str, str | None, str]],
    path: Path,
) -> None:
    unlabelled = [row for row in rows if row[1] is None]
    if rows and len(unlabelled) == len(rows):
        listing.notes.append(
            f"{path.name} holds no labels: its {len(rows)} videos are left out of the index"
        )
    else:
        listing.splits.append(split)
    for name, label, where in rows:
        video = _find(listing, videos, split, name, where)
        if label is not None:
            listing.entries.append(Entry(split, name, label, where, video))
        else:
            listing.known |= set(videos.by_name.get(name, ()))
            if len(unlabelled) < len(rows):
                cause = f"{where}: has no label, unlike other rows"
                listing.add_problem("label", split, name, cause)


def _find(listing: Listing, videos: Inventory, split: str, name: str, where: str) -> str | None:
    """The only video of this name; of several, the one in a folder of its split."""
    paths = videos.by_name.get(name, [])
    if len(paths) > 1:
        ours = [p for p in paths if {f.lower() for f in folders_of(p)} & set(_FOLDERS[split])]
        if len(ours) != 1:
            cause = f"{where}: may be any of {', '.join(paths[:4])}"
            listing.add_problem("ambiguous", split, name, cause)
            listing.known |= set(paths)
            return None
        paths = ours
    return paths[0] if paths else None


def _semicolon_rows(path: Path) -> Rows:
    for where, row in read_rows(path, ";"):
        yield row[0], row[1] if len(row) > 1 and row[1] else None, where


def _jester_rows(path: Path) -> Rows:
    """Rows `id;label` without a header, or with the columns `video_id,label,…`."""
    header = _header(path)
    if header is None:
        yield from _semicolon_rows(path)
        return
    column = header.index("video_id" if "video_id" in header else "id")
    for where, row in list(read_rows(path, ","))[1:]:
        if len(row) != len(header):
            raise PreparationError(f"{where}: {len(row)} cells under {len(header)} columns")
        yield row[column], row[header.index("label")] or None, where


def _header(path: Path) -> list[str] | None:
    _, first = next(read_rows(path, ","), ("", []))
    names = [cell.lower() for cell in first]
    return names if "label" in names and {"id", "video_id"} & set(names) else None


def _header_classes(path: Path) -> list[str]:
    """Classes of a list with a header, ordered by `label_id` if it numbers them, else sorted."""
    header = _header(path)
    if header is None:
        raise PreparationError(f"no labels.csv next to {path}: it defines the order of the classes")
    rows = [dict(zip(header, row, strict=False)) for _, row in list(read_rows(path, ","))[1:]]
    numbers = {(row.get("label_id") or "", row["label"]) for row in rows if row["label"]}
    labels = sorted({label for _, label in numbers})
    if len(numbers) == len(labels) and all(number.isdigit() for number, _ in numbers):
        return [label for _, label in sorted(numbers, key=lambda pair: int(pair[0]))]
    return labels


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise PreparationError(f"{path} is not JSON ({error}); download it again") from None


def _json_classes(path: Path) -> list[str]:
    """Class names of `{"name": "index", …}` in the order of the indices."""
    table = _json(path)
    try:
        order = sorted((int(index), name) for name, index in table.items())
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise PreparationError(f"{path}: expected {{class name: index}}") from None
    if [index for index, _ in order] != list(range(len(order))):
        raise PreparationError(f"{path}: the indices are not 0 … {len(order) - 1}, each once")
    return [name for _, name in order]


def _template_rows(path: Path) -> Rows:
    """Rows of `[{"id": …, "template": "Pushing [something] …"}, …]`; test lists have only ids."""
    table = _json(path)
    if not isinstance(table, list):
        raise PreparationError(
            f"{path} starts with {json.dumps(table)[:40]}; expected a JSON list of "
            "{id, template, …}. Download it again"
        )
    for number, row in enumerate(table, 1):
        where = f"{path.name}, entry {number}"
        if not isinstance(row, dict) or "id" not in row:
            raise PreparationError(f"{where}: {row!r} has no id; expected {{id, template, …}}")
        template = row.get("template")
        if not isinstance(template, str | None):
            raise PreparationError(
                f"{where}: the template is {template!r}; expected a text such as 'Pushing "
                "[something]', or none in a test list. Download the list again"
            )
        label = None if template is None else template.replace("[", "").replace("]", "")
        yield str(row["id"]), label, where
