"""Mutated lists: read as a small parser written from docs/data.md reads them, or refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from ffn.data import read_annotations

SUFFIXES = (
    *("3gp", "avi", "flv", "gif", "m4v", "mkv", "mov"),
    *("mp4", "mpeg", "mpg", "ts", "webm", "wmv"),
)
PATHS = ("path", "video", "video_path", "file", "filename")
LABELS = ("label", "class", "class_name", "category")
OTHERS = ("frames", "num_frames", "start", "end", "group")
Row = tuple[str, int | None, str]  # path, frames, label


class Refused(Exception):
    """The grammar does not allow a list."""


def must(condition: object) -> None:
    if not condition:
        raise Refused


# --- the oracle: a parser character by character, from the documented grammar ---------------------


def is_video(path: str) -> bool:
    return "." in path and path.lower().rsplit(".", 1)[1] in SUFFIXES


def is_digits(text: str) -> bool:
    return bool(text) and all(c in "0123456789" for c in text)


def parse(data: bytes, suffix: str) -> list[Row]:
    """The rows of a list by the grammar."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    must(all(c in "\t\n" or (ord(c) >= 32 and ord(c) != 127) for c in text))
    lines = [line for line in text.split("\n") if line.strip(" \t")]
    must(lines)
    separator = header_separator(lines[0], suffix)
    rows = table(lines, separator) if separator else text_list([x.strip(" \t") for x in lines])
    must(rows)
    for path, frames, label in rows:
        must(frames is None or 1 <= frames < 2**31)
        must(len(path) <= 4096 and len(label) <= 4096)
        must(not is_video(label) and not (" " in label and is_digits(label.replace(" ", ""))))
    return rows


def header_separator(line: str, suffix: str) -> str | None:
    for separator in ",\t;":
        names = {name.strip(' \t"').lower() for name in line.split(separator)}
        if names & {*PATHS} and names & {*LABELS}:
            return separator
        must(len(names) < 2 or not names & {*PATHS, *LABELS})  # a header that lacks a column
    must(suffix != ".csv")
    return None


def cells_of(line: str, separator: str) -> list[str]:
    """Split one line of a table, with quotes."""
    cells, i = [], 0
    must(line.count('"') % 2 == 0)
    while True:
        while i < len(line) and line[i] == " ":
            i += 1
        cell = ""
        if i < len(line) and line[i] == '"':
            i += 1
            while line[i : i + 1] != '"' or line[i : i + 2] == '""':
                must(i < len(line))
                cell += line[i]
                i += 2 if line[i] == '"' else 1
            i += 1
            must(i == len(line) or line[i] == separator)
        else:
            while i < len(line) and line[i] != separator:
                cell += line[i]
                i += 1
        cells.append(cell.strip())
        if i >= len(line):
            return cells
        i += 1


def table(lines: list[str], separator: str) -> list[Row]:
    header = [name.lower() for name in cells_of(lines[0], separator)]
    named = [name for name in header if name]
    must(len(named) == len({*named}))
    path, label = (
        header.index(next(name for name in names if name in header)) for names in (PATHS, LABELS)
    )
    frames = next((header.index(name) for name in OTHERS[:2] if name in header), None)
    rows = []
    for line in lines[1:]:
        cells = cells_of(line, separator)
        if any(cells):
            must(len(cells) == len(header) and cells[path] and cells[label])
            count = None if frames is None else cells[frames]
            must(not count or is_digits(count))
            rows.append((cells[path], int(count) if count else None, cells[label]))
    return rows


def text_list(lines: list[str]) -> list[Row]:
    words = lines[0].lower().split()
    must(words[-1] not in LABELS and not {*words} <= {*PATHS, *LABELS, *OTHERS})
    must(not any(line.startswith('"') for line in lines))
    must(not any(all(mark in line for line in lines) for mark in ",;"))
    must(not any(re.search(rf"\.({'|'.join(SUFFIXES)})\"?[,;]", line, re.I) for line in lines))
    split = tab_columns if all("\t" in line for line in lines) else blank_columns
    rows = [split(line) for line in lines]
    must(len({len(row) for row in rows}) == 1)
    videos = [is_video(row[0]) for row in rows]
    must(len(rows) < 2 or videos[0] or not all(videos[1:]))  # an unknown header
    return [(row[0], int(row[1]) if len(row) == 3 else None, row[-1]) for row in rows]


def tab_columns(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.split("\t") if cell.strip()]
    must(len(cells) == 2 or (len(cells) == 3 and is_digits(cells[1])))
    return cells


def blank_columns(line: str) -> list[str]:
    words = re.split("([ \t]+)", line)  # words at even positions, blanks between
    ends = [i for i in range(0, len(words) - 1, 2) if is_video(words[i])]
    must(len(ends) <= 1 and len(words) >= 3)
    if ends:
        path, rest = "".join(words[: ends[0] + 1]), words[ends[0] + 2 :]
        if len(rest) > 1 and is_digits(rest[0]):
            must(len(rest) == 3)
            return [path, rest[0], rest[2]]
        must(len(rest) == 1 or "/" not in "".join(rest))
        return [path, "".join(rest)]
    must(len(words) == 3 or (len(words) == 5 and is_digits(words[2])))
    return words[::2]


def indices(labels: list[str]) -> list[str]:
    """The class of each row, by name."""
    if any(map(is_digits, labels)):
        must(all(map(is_digits, labels)))
        must(max(map(int, labels)) < 100_000)
        numbers = {int(label) for label in labels}
        must(numbers == {*range(len(numbers))})
        return [str(int(label)) for label in labels]
    return labels


# --- lists, and what goes wrong with them ---------------------------------------------------------

NAMES = ("walk", "long jump", "up/down", "turn upside/down", "été", "0", "1", "2", "clip.mp4")
STEMS = ("a", "my clip", "v_001", "clip 12", "sub/b", "x.mp4 y", "c,d", 'q"t', "g.h")


def make(rng: random.Random) -> str:
    """A list in one of the formats; most of them are valid."""
    kind = rng.choice(["space", "tab", "table", "table"])
    numbers, frames = rng.random() < 0.4, rng.random() < 0.3
    ending = rng.choice([".mp4", ".MP4", ".webm", "", ".mp4"])
    stems = STEMS[: rng.choice([1, 3, 5, len(STEMS)])]
    names = [name for name in NAMES[: rng.choice([1, 2, 5, 9])] if not is_digits(name)]
    rows = []
    for i in range(rng.randint(1, 8)):
        label = str(i % 3) if numbers else rng.choice(names)
        row = [f"{rng.choice(stems)}{i}{ending}", label]
        rows.append([row[0], str(rng.randint(8, 99)), label] if frames else row)
    if kind != "table":
        return "\n".join((" " if kind == "space" else "\t").join(row) for row in rows) + "\n"
    header = ["path", "frames", "label"] if frames else ["Video", "class"]
    separator = rng.choice(",\t;")
    quoted = [
        [f'"{c.replace(chr(34), chr(34) * 2)}"' if set(c) & set(',;" ') else c for c in row]
        for row in [header, *rows]
    ]
    return "\n".join(separator.join(row) for row in quoted) + "\n"


def at_random(edit: Callable[[str], str]) -> Callable[[random.Random, bytes], bytes]:
    """A mutation of one line."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        lines = data.decode().split("\n")
        i = rng.randrange(len(lines))
        lines[i] = edit(lines[i])
        return "\n".join(lines).encode()

    return mutate


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def replace(rng: random.Random, data: bytes) -> bytes:
    i = rng.randrange(len(data))
    return data[:i] + rng.choice([b" ", b"\t", b",", b'"', b"7", b"\xe9", b"\0", b"\n"]) + data[i:]


MUTATIONS = (
    lambda rng, data: data,
    lambda rng, data: data,
    cut,
    replace,
    replace,
    lambda rng, data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    lambda rng, data: data.replace(b"\t", b" "),
    lambda rng, data: data.replace(b" ", b"\t", 2),
    lambda rng, data: data.replace(b'"', b""),
    lambda rng, data: data.replace(b",", b";"),
    lambda rng, data: data.split(b"\n", 1)[1],  # without its header
    lambda rng, data: b"video_name class_name\n" + data,
    lambda rng, data: b"name\tkind\n" + data,
    at_random(lambda line: line + " 9"),
    at_random(lambda line: line.replace(" ", "  ")),
    at_random(lambda line: line.upper()),
    at_random(lambda line: line * 300),
    at_random(lambda line: " ".join(reversed(line.split()))),
    at_random(lambda line: ""),
    at_random(lambda line: line[:-1] + "20231122"),
)


def read(path: Path) -> tuple[list[Row] | None, str]:
    """What the reader understands of a list, or its message."""
    try:
        records, classes = read_annotations(path)
    except ValueError as error:
        return None, str(error)
    return [(record.path, record.frames, classes[record.label]) for record in records], ""


def test_mutated_lists(tmp_path: Path) -> None:
    accepted = 0
    for number in range(400):
        rng = random.Random(number)
        suffix = rng.choice([".txt", ".csv", ".tsv", ""])
        data = rng.choice(MUTATIONS)(rng, make(rng).encode())
        path = tmp_path / f"list_{number}{suffix}"
        path.write_bytes(data)
        try:
            rows = parse(data, suffix)
            classes = indices([label for *_, label in rows])
            expected = [
                (f"{tmp_path}/{video}", frames, label)
                for (video, frames, _), label in zip(rows, classes, strict=True)
            ]
        except Refused:
            expected = None

        found, message = read(path)

        assert found == expected, (number, data, message)
        accepted += found is not None
        if found is None:
            assert message.startswith(str(path)), message
            assert re.match(r":\d+: | contains no video; write ", message[len(str(path)) :])
            assert message.isprintable()  # one line
            assert len(message) < 700
    assert 100 < accepted < 300
