"""Data set `grid`: sentences of the GRID corpus (Cooke et al. 2006), and each of their words.

A sentence has six words, such as "bin blue at f two now" of the video `bbaf2n`. One list per kind
of word has its times, one list has the sentences. They are split twice, as by LipNet (Assael et al.
2016): by speaker (`unseen`), and within each speaker (`overlapped`).
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

from ffn.data.lists import is_video
from ffn.datasets.disk import Inventory, folders_of
from ffn.datasets.listing import Entry, Listing, PreparationError, register_dataset
from ffn.datasets.lists import read_lines

_TEXTS = {
    "command": "bin lay place set",
    "colour": "blue green red white",
    "preposition": "at by in with",
    "letter": "a b c d e f g h i j k l m n o p q r s t u v x y z",
    "digit": "zero one two three four five six seven eight nine",
    "adverb": "again now please soon",
}
WORDS = {kind: text.split() for kind, text in _TEXTS.items()}
SENTENCES = "sentences"  # the list with a text
UNSEEN = {"s1", "s2", "s20", "s22"}  # speakers of the validation
OVERLAPPED = 0.255  # share of each speaker's sentences in the validation: 255 of 1,000
_PER_SECOND = 25_000  # units of the alignments: thousandths of a frame, 25 frames per second
_MARGIN = 0.12  # seconds before and after a word: lips move before and after its sound
_PAUSES = {"sil", "sp"}


@register_dataset("grid")
def grid(videos: Inventory, lists: Inventory) -> Listing:
    """Read GRID: `s1/….mpg` and `s1/….align`, with any folders between, above and below."""
    listing = Listing([*chain(*WORDS.values())], [])
    aligned = {}
    for path in lists.find_list(r".*\.align"):
        where = path.relative_to(lists.root).as_posix()
        aligned.setdefault((_speaker(lists.root, where), path.stem), where)
    if not aligned:
        raise PreparationError(
            f"no alignment of GRID under {lists.root}: no file is named like bbaf2n.align. Put the "
            "alignments there, or name their folder with --annotations"
        )
    sentences = []
    for (speaker, name), where in aligned.items():
        found = [path for path in videos.by_name.get(name, ()) if is_video(path)]
        found = [path for path in found if speaker in ("", _speaker(videos.root, path))]
        listing.known |= {*found}
        speaker = _speaker(videos.root, found[0]) if found else speaker
        entry = Entry("", f"{speaker}/{name}", "", where)
        listing.choose(entry, found)
        if not found:
            listing.add_problem("missing", "", entry.name, f"{where}: no such video on disk")
        elif entry.path is not None:
            try:
                sentences.append((speaker, entry, _read_words(lists.root / where)))
            except ValueError as error:
                listing.add_problem("label", "", entry.name, f"{where}: {error}")
    _add_splits(listing, sentences)
    return listing


def _speaker(root: Path, path: str) -> str:
    """Name of the innermost folder of a speaker above a file; "" without one."""
    folders = (*folders_of(path)[::-1], root.name)
    return next((one for one in folders if re.fullmatch(r"s[0-9]+", one)), "")


def _read_words(path: Path) -> list[tuple[float, float, str]]:
    """Start and end (s) and text of the words of an alignment, whose lines are start, end, word.

    Raises:
        ValueError: if a line is invalid, times do not ascend, or the name has other words.
    """
    words, last = [], 0
    for where, line in read_lines(path):
        cells = re.fullmatch(r"(\d+)\s+(\d+)\s+(\S+)", line)
        if cells is None or not last <= int(cells[1]) < int(cells[2]):
            raise ValueError(
                f"line {where.rpartition(':')[2]} is {line!r}; expected start, end and word, such "
                f"as '{last} {last + 6000} blue'"
            )
        last = int(cells[2])
        if cells[3] not in _PAUSES:
            words.append((int(cells[1]) / _PER_SECOND, last / _PER_SECOND, cells[3]))
    text = [word for *_, word in words]
    if len(text) != 6 or any(a not in b for a, b in zip(text, WORDS.values(), strict=True)):
        raise ValueError(f"its words are {' '.join(text)!r}; expected {', '.join(WORDS)}")
    digit = WORDS["digit"].index(text[4]) or "z"
    if path.stem != "".join((*(word[0] for word in text[:4]), str(digit), text[5][0])):
        raise ValueError(f"its words are {' '.join(text)!r}, which its name contradicts")
    return words


def _add_splits(listing: Listing, sentences: Sequence[tuple[str, Entry, list]]) -> None:
    """Add the entries of all lists and splits, from the speaker, entry and words of sentences."""
    names = defaultdict(list)
    for speaker, entry, _ in sentences:
        names[speaker].append(entry.name)
    held_out = {"unseen": {*chain(*(names[speaker] for speaker in UNSEEN & {*names}))}}
    if len(held_out["unseen"]) in (0, len(sentences)):
        listing.notes.append(f"no split by speaker: it needs some of {sorted(UNSEEN)} and others")
        held_out = {}
    held_out["overlapped"] = {*chain(*map(_share, names.values()))}
    for kind, protocol in product((*WORDS, SENTENCES), held_out):
        listing.splits += [f"{kind}/{protocol}/{part}" for part in ("train", "val")]
        listing.fold_classes[f"{kind}/{protocol}"] = WORDS.get(kind, [])
    for (_, entry, words), (protocol, others) in product(sentences, held_out.items()):
        part = f"{protocol}/{'val' if entry.name in others else 'train'}"
        text = " ".join(word for *_, word in words)
        listing.entries.append(replace(entry, split=f"{SENTENCES}/{part}", label=text))
        for kind, (start, end, word) in zip(WORDS, words, strict=True):
            times = (round(max(0.0, start - _MARGIN), 3), round(end + _MARGIN, 3))
            split = {"split": f"{kind}/{part}", "label": word}
            listing.entries.append(replace(entry, start=times[0], end=times[1], **split))


def _share(names: list[str]) -> list[str]:
    """Those sentences of a speaker that are validation, in an order that no other depends on."""
    names = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return names[: round(OVERLAPPED * len(names))]
