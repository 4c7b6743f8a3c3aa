"""Mutated lists: their rows are read as they are written, or the list is refused with its line."""

from __future__ import annotations

import csv
import io
import random
import re
from pathlib import Path

from ffn.data import read_annotation_rows

PATHS = ("a.mp4", "b/c d.MP4", "v_1", "100218", "dir/é.webm", "x 9.avi")
NAMES = ("run", "long jump", "up/down")
Row = tuple[str, str, str]  # path, frames, label


def make(rng: random.Random) -> tuple[str, list[Row]]:
    """A list in one of the documented formats, and its rows."""
    counted, labels = rng.random() < 0.4, rng.choice([NAMES, "0127"])
    rows = [
        (rng.choice(PATHS), str(rng.randint(1, 300)) if counted else "", rng.choice(labels))
        for _ in range(rng.randint(1, 6))
    ]
    if rng.random() < 0.5:
        separator = rng.choice(["\t", " "])
        return "".join(separator.join(filter(None, row)) + "\n" for row in rows), rows
    header = (rng.choice(["path", "Video"]), "num_frames", rng.choice(["label", "class_name"]))
    order, text = rng.sample(range(3), 3), io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    table = csv.writer(text, delimiter=rng.choice(",\t;"), quoting=quoting, lineterminator="\n")
    table.writerows([cells[i] for i in order] for cells in (header, *rows))
    return text.getvalue(), rows


def at_random(rng: random.Random, data: bytes, new: bytes, removed: int = 0) -> bytes:
    i = rng.randrange(len(data))
    return data[:i] + new + data[i + removed :]


HARMLESS = (
    lambda rng, data: data,
    lambda rng, data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
    lambda rng, data: data.replace(b"\n", b"\r"),
    lambda rng, data: b"\n \n" + data.replace(b"\n", b"\n\n"),
)
DAMAGE = (
    lambda rng, data: data[: rng.randrange(len(data))],
    lambda rng, data: at_random(rng, data, rng.choice([b" ", b"\t", b",", b'"', b"7"]), 1),
    lambda rng, data: at_random(rng, data, rng.choice([b"\xe9", b"\0", b"\n", b" 9 "])),
    lambda rng, data: data.replace(b"\t", b" "),
    lambda rng, data: data.replace(b" ", b"\t", 2),
    lambda rng, data: data.replace(b'"', b""),
    lambda rng, data: data.replace(b",", b";"),
    lambda rng, data: data.split(b"\n", 1)[1],  # without its header
    lambda rng, data: b"video_name class_name\n" + data,
    lambda rng, data: data * 300,
)


def read(path: Path) -> tuple[list[Row] | None, str]:
    """The rows that the reader finds in a list, or its message."""
    try:
        rows = read_annotation_rows(path)
    except ValueError as error:
        return None, str(error)
    lines = re.split("\r\n|\r|\n", path.read_bytes().decode("utf-8-sig"))
    for row in rows:  # nothing is invented
        line = lines[int(row.where.rpartition(":")[2]) - 1]
        assert all(word in line for word in f"{row.path} {row.frames} {row.label}".split())
    return [(row.path, row.frames, row.label) for row in rows], ""


def test_mutated_lists(tmp_path: Path) -> None:
    accepted = 0
    for number in range(500):
        rng = random.Random(number)
        text, rows = make(rng)
        is_harmless = rng.random() < 0.5
        data = rng.choice(HARMLESS if is_harmless else DAMAGE)(rng, text.encode())
        path = tmp_path / f"list_{number}{rng.choice(['.txt', '.tsv', ''])}"
        path.write_bytes(data)

        found, message = read(path)

        accepted += found is not None
        assert found is None or not is_harmless or found == rows, (number, data)
        if found is None:
            assert message.startswith(str(path)), message
            assert re.match(r":\d+: | contains no video; write ", message[len(str(path)) :])
            assert message.isprintable()  # one line
            assert len(message) < 700
    assert 150 < accepted < 450
