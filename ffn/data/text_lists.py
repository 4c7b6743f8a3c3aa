"""Split the lines of a text list into path, number of frames and label.

`docs/data.md` has the grammar. A line that can be read in two ways is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ffn.data.annotation_rows import SUFFIX, AnnotationRow, is_number, short

Columns = tuple[str, str | None, str]  # path, frames, label


def read_text_list(path: Path, lines: Sequence[tuple[int, str]]) -> Iterator[AnnotationRow]:
    """Read lines `path label` or `path frames label`; the format is that of the whole list.

    Args:
        path: The file, for messages.
        lines: Number and text of each line that is not blank.

    Raises:
        ValueError: if a line is invalid or ambiguous.
    """
    lines = [(number, line.strip(" \t")) for number, line in lines]
    _refuse_table(path, lines)
    by_tabs = all("\t" in line for _, line in lines)
    split = _split_at_tabs if by_tabs else _split_at_blanks
    rows = [(number, line, split(f"{path}:{number}", line)) for number, line in lines]

    counted = [frames is not None for _, _, (_, frames, _) in rows]
    if any(counted) and not all(counted):
        rare = sum(counted) * 2 <= len(counted)  # the rarer format is the more likely mistake
        number, line, _ = rows[counted.index(rare)]
        raise ValueError(
            f"{path}:{number}: {short(line)} has {'a' if rare else 'no'} number before the label, "
            "unlike other lines; expected 'path label' or 'path frames label' in every line. If "
            "the number is part of a path or a label, write the list as a csv with the header "
            "path,label"
        )
    for number, line, (video, frames, label) in rows:
        where = f"{path}:{number}"
        if frames is not None and not by_tabs and re.search(r"[ \t]", label):
            _refuse(where, line, f"{frames} is the number of frames, or the start of the label")
        yield AnnotationRow(where, video, label, frames)


def _refuse_table(path: Path, lines: Sequence[tuple[int, str]]) -> None:
    everywhere = [mark for mark in ",;" if all(mark in line for _, line in lines)]
    for number, line in lines:
        if line.startswith('"'):
            raise ValueError(
                f"{path}:{number}: {short(line)} starts with a quote; quotes need a header, e.g. "
                "path,label, as the first line"
            )
        if everywhere or re.search(rf"{SUFFIX}\"?[,;]", line):
            raise ValueError(
                f"{path}:{number}: {short(line)} has columns separated by commas or semicolons, "
                "but the list has no header; add one, e.g. path,label, as the first line"
            )


def _split_at_tabs(where: str, line: str) -> Columns:
    cells = re.split(r" *\t[\t ]*", line)
    if len(cells) == 2:
        return cells[0], None, cells[1]
    if len(cells) == 3 and is_number(cells[1]):
        return cells[0], cells[1], cells[2]
    raise ValueError(
        f"{where}: {short(line)} has {len(cells)} columns, separated by tabs; expected path and "
        "label, or path, number of frames and label. Other columns need a header"
    )


def _split_at_blanks(where: str, line: str) -> Columns:
    ends = [found.end() for found in re.finditer(rf"{SUFFIX}(?=[ \t])", line)]
    if len(ends) > 1:
        _refuse(where, line, "the path may end at two places")
    if not ends:
        return _split_folder(where, line)
    video, rest = line[: ends[0]], line[ends[0] :].strip(" \t")
    counted = re.fullmatch(r"([0-9]+)[ \t]+(.+)", rest)
    if counted:
        return video, *counted.groups()
    if re.search(r"[ \t]", rest) and "/" in rest:
        _refuse(where, line, f"the path may end after {short(video)} or later")
    return video, None, rest


def _split_folder(where: str, line: str) -> Columns:
    """Split a line whose path has no video suffix: the label is its last word."""
    counted = re.fullmatch(r"(.*[^ \t])[ \t]+([0-9]+)[ \t]+([^ \t]+)", line)
    if counted:
        if re.search(r"[ \t][0-9]+$", counted[1]):
            _refuse(where, line, "there are two numbers before the label")
        return counted.groups()
    found = re.fullmatch(r"(.*[^ \t])[ \t]+([^ \t]+)", line)
    if not found:
        raise ValueError(
            f"{where}: {short(line)}; expected 'path label' or 'path frames label' in a line"
        )
    path, label = found.groups()
    if re.search(r"[ \t]", path) and not is_number(label):
        _refuse(where, line, "the path has no video suffix, and may end at any blank")
    return path, None, label


def _refuse(where: str, line: str, reason: str) -> None:
    raise ValueError(
        f"{where}: {short(line)} is ambiguous: {reason}. Write tabs between the columns of every "
        "line, or a csv with the header path,label"
    )
