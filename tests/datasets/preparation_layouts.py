"""Miniature data sets in the layout of their official releases, for the tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import av
from tables import read_csv

from ffn.datasets import Summary

# Names of the official lists, with commas, quotes, brackets.
TEMPLATES = [
    "Pulling [something] from right to left",
    "Pulling [something] from left to right",
    "Putting [something], [something] and [something] on the table",
    "Plugging [something] into [something] but pulling it right out as you remove your hand",
]
NAMES = [template.replace("[", "").replace("]", "") for template in TEMPLATES]


class Layouts:
    """Writes data sets under a folder.

    Args:
        root: Folder of the data set.
        video: Function that writes a video of some frames as H.264 to a path.
        frames: Function that writes a frame folder.
    """

    def __init__(self, root: Path, video: Callable, frames: Callable) -> None:
        self.root, self._video, self._frames = root, video, frames

    def text(self, path: str, lines: Iterable[str], end: str = "\n") -> None:
        """Write lines."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes("".join(f"{line}{end}" for line in lines).encode())

    def video(self, path: str, frames: int = 5, **options: object) -> None:
        """Write a video of 32 x 24 pixels at 25 frames per second."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._video(target, frames, width=32, height=24, **options)

    def frames(self, path: str, frames: int = 5, first: int = 1) -> None:
        """Write a frame folder of images of 32 x 24 pixels."""
        self._frames(self.root / path, frames, size=(32, 24), first=first)

    def sthv1(self) -> None:
        """V1: frame folders, `id;label`; one video is missing, one has a gap, one is not listed."""
        self.text("something-something-v1-labels.csv", NAMES)
        self.text(
            "something-something-v1-train.csv",
            [f"{n};{NAMES[n % 4]}" for n in range(1, 9)] + [f"9;{NAMES[0]}"],
        )
        self.text(
            "something-something-v1-validation.csv", [f"{n};{NAMES[n % 4]}" for n in range(11, 15)]
        )
        self.text("something-something-v1-test.csv", ["21", "22"])
        for number in (*range(1, 9), *range(11, 15), 21, 22, 99):
            self.frames(f"20bn-something-something-v1/{number}", 3 + number % 4)
        (self.root / "20bn-something-something-v1/5/00002.jpg").unlink()

    def sthv2(self, *, later: bool = False) -> None:
        """V2, of the first release or with the later names and the answers to the test list."""
        stem = "labels/" if later else "something-something-v2-"
        named = {
            "labels": {name: str(index) for index, name in reversed(list(enumerate(NAMES)))},
            "train": [self._template(n) for n in range(1, 5)],
            "validation": [self._template(n) for n in range(5, 9)],
            "test": [{"id": str(n)} for n in range(9, 13)],
        }
        for name, content in named.items():
            path = self.root / f"{stem}{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        if later:
            self.text(f"{stem}test-answers.csv", [f"{n};{NAMES[n % 4]}" for n in range(9, 13)])
        for number in range(1, 13):
            self.video(
                f"20bn-something-something-v2/{number}.webm", codec="libvpx", stream={"g": "3"}
            )

    def hmdb51(self, splits: str = "testTrainMulti_7030_splits") -> dict[str, list[str]]:
        """HMDB51: avi in class folders, odd names, three lists per class with trailing blanks."""
        names = {
            "brush_hair": ["#20_Rhythm_brush_u_nm_np1.avi", "a;b!c&d[e](f).avi", "plain_0.avi"],
            "cartwheel": ["(Rad)Schlag_cartwheel_f_0.avi", "Acro'batic_1.avi", "x_2.avi"],
        }
        for name, videos in names.items():
            for number, marks in ((1, "120"), (2, "012"), (3, "201")):
                lines = [f"{v} {mark} " for v, mark in zip(videos, marks, strict=True)]
                self.text(f"{splits}/{name}_test_split{number}.txt", lines)
            for video in videos:
                self.video(f"hmdb51_org/{name}/{video}", codec="mpeg4", stream={})
        return names

    def ucf101(self) -> None:
        """UCF101: CRLF lists; HandstandPushups has another spelling in the names of its files."""
        self.text("ucfTrainTestlist/classInd.txt", ["1 Archery", "2 HandstandPushups"], "\r\n")
        spelt = {"Archery": "Archery", "HandstandPushups": "HandStandPushups"}
        for group in range(1, 4):
            for name, other in spelt.items():
                path = f"UCF-101/{name}/v_{other}_g0{group}_c01.avi"
                self.video(path, codec="mpeg4", stream={})
        for number in range(1, 4):
            train, test = [], []
            for index, name in enumerate(spelt, 1):
                for group in range(1, 4):
                    line = f"{name}/v_{spelt[name] if index == 1 else name}_g0{group}_c01.avi"
                    (test.append(line) if group == number else train.append(f"{line} {index}"))
            self.text(f"ucfTrainTestlist/trainlist0{number}.txt", train, "\r\n")
            self.text(f"ucfTrainTestlist/testlist0{number}.txt", test, "\r\n")

    def _template(self, number: int) -> dict[str, object]:
        template = TEMPLATES[number % 4]
        filled = template.replace("[something]", "a pen").lower()
        return {
            "id": str(number),
            "label": filled,
            "template": template,
            "placeholders": ["a pen"] * template.count("["),
        }


def write_videos(layouts: Layouts, count: int = 3, **options: object) -> None:
    """Write videos of 5, 6, … frames of one class into both splits."""
    for number in range(count):
        layouts.video(f"train/run/{number}.mp4", 5 + number, **options)
        layouts.video(f"val/run/{number}.mp4", 5 + number, **options)


def write_damaged(layouts: Layouts, path: str) -> None:
    """Write a video of 40 frames whose frame 20 does not decode; its packets look whole."""
    layouts.video(path, 40, stream={"g": "40", "bf": "0", "qp": "5"})
    target = layouts.root / path
    data = bytearray(target.read_bytes())
    with av.open(str(target)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][20]
    data[packet.pos + 4 : packet.pos + packet.size - 4] = os.urandom(packet.size - 8)
    target.write_bytes(data)


def index(root: Path, name: str = "train") -> list[dict[str, str]]:
    """Rows of an index."""
    return read_csv(root / f"index/{name}.csv")


def labels(root: Path, name: str) -> dict[str, str]:
    """Labels of an index by path."""
    return {row["path"]: row["label"] for row in index(root, name)}


def problems(summary: Summary) -> set[tuple[str, str, str]]:
    """Kind, split and name of all problems."""
    return {(one.kind, one.split, one.name) for one in summary.problems}
