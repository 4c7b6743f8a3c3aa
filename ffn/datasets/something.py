"""Data sets `sthv1`, `sthv2`, `jester`: Something-Something V1 and V2, and Jester.

Videos are named by a number. V1 and Jester are frame folders with lists `id;label`; V2 is webm
files with lists in JSON. Later releases use shorter names and add `test-answers.csv`; one release
of Jester has comma-separated lists with a header. Test lists of the first releases have no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ffn.datasets.disk import SPLIT_FOLDERS, Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import find_lists, read_header, read_lines, read_rows, read_table

Rows = Iterable[tuple[str, str, str]]  # video name, label or "", position in the list
Content = TypeVar("Content")


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
    index = _read_json(found["labels"], TypeAdapter(dict[str, int]))
    return _listing(videos, found, sorted(index, key=index.__getitem__), _template_rows)


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
    listing = Listing(classes, [])
    answers = {}
    if "answers" in found:
        answers = {name: row for name, *row in _semicolon_rows(found["answers"])}
    for split, role in (("train", "train"), ("val", "validation"), ("test", "test")):
        if role not in found:
            continue
        entries = []
        for name, label, where in read(found[role]):
            if role == "test":
                label, where = answers.get(name, (label, where))
            entries.append(Entry(split, name, label, where))
            _find(listing, videos, entries[-1])
        listing.add_list(split, entries, found[role])
    return listing


def _find(listing: Listing, videos: Inventory, entry: Entry) -> None:
    """Set the path of an entry: of several videos of its name, the one in a folder of its split."""
    paths = videos.by_name.get(entry.name, [])
    own = set(SPLIT_FOLDERS[entry.split])
    inside = [path for path in paths if own & {folder.lower() for folder in folders_of(path)}]
    listing.choose(entry, inside if len(inside) == 1 else paths)


def _semicolon_rows(path: Path) -> Rows:
    for where, row in read_rows(path, ";"):
        yield row[0], row[1] if len(row) > 1 else "", where


def _jester_rows(path: Path) -> Rows:
    """Rows `id;label` without a header, or with the columns `video_id,label,…`."""
    if "label" not in read_header(path):
        yield from _semicolon_rows(path)
        return
    for where, row in read_table(path):
        yield row.get("video_id") or row["id"], row["label"], where


def _header_classes(path: Path) -> list[str]:
    """Classes of a list with a header, ordered by `label_id` if it numbers them, else sorted."""
    if "label" not in read_header(path):
        raise PreparationError(f"no labels.csv next to {path}: it defines the order of the classes")
    rows = [row for _, row in read_table(path)]
    numbers = {(row.get("label_id", ""), row["label"]) for row in rows if row["label"]}
    labels = sorted({label for _, label in numbers})
    if len(numbers) == len(labels) and all(number.isdigit() for number, _ in numbers):
        return [label for _, label in sorted(numbers, key=lambda pair: int(pair[0]))]
    return labels


class _Video(BaseModel):
    """An entry of a list of V2; a test list has only ids."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    id: str
    template: str | None = None


def _template_rows(path: Path) -> Rows:
    """Rows of `[{"id": …, "template": "Pushing [something] …"}, …]`."""
    for number, row in enumerate(_read_json(path, TypeAdapter(list[_Video])), 1):
        label = (row.template or "").replace("[", "").replace("]", "")
        yield row.id, label, f"{path.name}, entry {number}"


def _read_json(path: Path, content: TypeAdapter[Content]) -> Content:
    try:
        return content.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise PreparationError(
            f"{path}: {where}: {first['msg']}; download the official list again"
        ) from None
