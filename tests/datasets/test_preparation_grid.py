"""GRID in miniature: lists of words and sentences, splits by speaker and within speakers."""

from __future__ import annotations

import pytest
from preparation_layouts import Layouts, index, labels, problems
from tables import read_csv

from ffn.data import read_annotations
from ffn.datasets import prepare

COMMANDS, LETTERS = {"b": "bin", "s": "set"}, "abcdefghijkl"
UNITS = 25_000  # of the alignments, per second


def alignment(command: str, letter: str) -> list[str]:
    """Lines of "… blue at … two now": words of a fifth of a second from .5 s on, and a pause."""
    words = ["sil", COMMANDS[command], "blue", "sp", "at", letter, "two", "now", "sil"]
    times = [0, 0.5, 0.7, 0.9, 0.94, 1.1, 1.3, 1.5, 1.7, 2.0]
    ends = [round(time * UNITS) for time in times]
    return [f"{a} {b} {w}" for a, b, w in zip(ends[:-1], ends[1:], words, strict=True)]


@pytest.fixture
def grid(layouts: Layouts) -> Layouts:
    """24 sentences of s1 and of s3; the alignments of s3 are beside its videos."""
    for speaker, align in (("s1", "alignments/s1"), ("s3", "video/s3/align")):
        for command in COMMANDS:
            for letter in LETTERS:
                name = f"{command}ba{letter}2n"
                path = f"video/{speaker}/mpg_6000/{name}.mpg"
                layouts.video(path, 50, codec="mpeg1video", stream={})
                layouts.text(f"{align}/{name}.align", alignment(command, letter))
    return layouts


def without_classes(summary) -> set[tuple[str, str, str]]:
    return {one for one in problems(summary) if one[0] != "class"}


def test_words_and_sentences(grid: Layouts) -> None:
    summary = prepare("grid", grid.root)

    assert without_classes(summary) == set()
    root = grid.root
    path = "video/s1/mpg_6000/bbaf2n.mpg"
    row = next(row for row in index(root, "letter/unseen/val") if row["path"] == path)
    assert (row["label"], row["start"], row["end"]) == ("f", "0.98", "1.42")  # .12 s around it
    assert row["frames"] == "50"
    records, _ = read_annotations(
        root / "index/digit/unseen/train.csv",
        root=root,
        classes=(root / "index/digit/unseen/classes.txt").read_text().split(),
    )
    assert {(one.label, one.start, one.end) for one in records} == {(2, 1.18, 1.62)}
    texts = {row["path"]: row["text"] for row in index(root, "sentences/unseen/val")}
    assert texts[path] == "bin blue at f two now"
    assert {path.split("/")[1] for path in texts} == {"s1"}
    assert {p.split("/")[1] for p in labels(root, "command/unseen/train")} == {"s3"}


def test_overlapped_speakers(grid: Layouts) -> None:
    """A fourth of each speaker's sentences, the same in all lists, whatever else there is."""
    prepare("grid", grid.root)

    held_out = set(labels(grid.root, "letter/overlapped/val"))
    assert [sum(f"/{s}/" in path for path in held_out) for s in ("s1", "s3")] == [6, 6]
    sentences = read_csv(grid.root / "index/sentences/overlapped/val.csv")
    assert {row["path"] for row in sentences} == held_out
    assert held_out.isdisjoint(labels(grid.root, "letter/overlapped/train"))
    one = prepare("grid", grid.root / "video/s1", annotations=grid.root / "alignments")
    assert {f"video/s1/{p}" for p in labels(one.output.parent, "letter/overlapped/val")} == {
        path for path in held_out if "/s1/" in path
    }
    assert any("s20" in note for note in one.notes)
    assert not any("unseen" in split for split in one.description["fingerprint"]["videos"])


def test_problems(grid: Layouts) -> None:
    """One line each; everything else is indexed."""
    s1 = "alignments/s1"
    grid.text(f"{s1}/bbaa2n.align", ["0 12000 sil", "12000 9000 bin"])
    grid.text(f"{s1}/bbab2n.align", alignment("b", "c"))
    grid.text(f"{s1}/bbac2n.align", alignment("b", "c")[:-3])
    (grid.root / f"{s1}/bbad2n.align").unlink()
    (grid.root / "video/s1/mpg_6000/bbae2n.mpg").unlink()
    grid.text("video/s1/mpg_6000/bbaf2n.mpg", ["no video"])
    grid.video("video/s1/vcd/bbag2n.mpg", codec="mpeg1video", stream={})

    summary = prepare("grid", grid.root)

    found = [one for one in summary.problems if one.kind != "class"]
    assert sorted((one.kind, one.name) for one in found) == [
        ("ambiguous", "s1/bbag2n"),
        ("label", "s1/bbaa2n"),
        ("label", "s1/bbab2n"),
        ("label", "s1/bbac2n"),
        ("missing", "s1/bbae2n"),
        ("unlisted", "video/s1/mpg_6000/bbad2n.mpg"),
        ("unreadable", "s1/bbaf2n"),
    ]
    details = {one.name: one.detail for one in found}
    assert "bbaa2n.align: line 2 is '12000 9000 bin'" in details["s1/bbaa2n"]
    assert "'bin blue at c two now'" in details["s1/bbab2n"]
    assert len(labels(grid.root, "digit/unseen/val")) == 24 - 7
