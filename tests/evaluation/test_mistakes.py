"""The contact sheet shows the frames of the most confident mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from evaluation_toys import CLASSES, ToyVideos, loader, plain
from pictures import enlarged, places, read_picture

from ffn.data import Protocol, VideoError
from ffn.evaluation import Sweep, mistakes, sweep

NAMES = [f"class {i}" for i in range(CLASSES)]


def swept(toys: ToyVideos) -> Sweep:
    return sweep(plain(), loader(toys), latency=False, keep_logits=True)


def by_hand(result: Sweep, frames: int) -> list[tuple[int, int, float]]:
    """The wrong answers in plain Python, the most probable first."""
    kept, found = result.predictions, []
    for i, row in enumerate(kept.logits[frames].double()):
        answer = int(row.argmax())
        if kept.ok[i] and answer != kept.label[i]:
            found.append((i, answer, float(row.exp()[answer] / row.exp().sum())))
    return sorted(found, key=lambda mistake: -mistake[2])


def test_mistakes_are_ordered_by_their_probability() -> None:
    result = swept(ToyVideos(33, failed=(4, 20)))

    for frames in (2, 4, 6):
        found = mistakes.confident_mistakes(result.predictions, frames)
        expected = by_hand(result, frames)
        assert [one[:2] for one in found] == [one[:2] for one in expected]
        assert [one[2] for one in found] == pytest.approx([one[2] for one in expected])


@pytest.mark.parametrize("protocol", [Protocol(), Protocol(1, 3)], ids=str)
def test_the_sheet_has_the_frames_of_the_mistakes(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys = ToyVideos(33, failed=(4, 20), protocol=protocol)
    result = swept(toys)
    monkeypatch.setattr(mistakes, "SHOWN", 5)
    monkeypatch.setattr(mistakes, "FRAMES", 2)

    path = mistakes.save_mistakes(result, toys, NAMES, tmp_path / "mistakes.png")

    frames = max(result.rows, key=lambda row: row.top1).frames
    picture, corners = read_picture(path), []
    for place, (index, _, _) in enumerate(by_hand(result, frames)):
        clip = toys[index]["clips"][frames]
        clip = clip if clip.ndim == 4 else clip[1]  # the center of three crops
        chosen = {2: (0, 1), 4: (1, 3), 6: (1, 4)}[frames]  # middle of each half
        for number, frame in enumerate(clip.transpose(0, 1)):
            found = places(picture, enlarged(frame, 12))
            assert len(found) == (place < 5 and number in chosen)
            corners += found
    assert len(corners) == 10
    assert corners == sorted(corners)  # two in a row


def test_a_video_that_cannot_be_read_again_is_left_out(tmp_path: Path) -> None:
    toys = ToyVideos(33)
    result = swept(toys)
    frames = max(result.rows, key=lambda row: row.top1).frames
    first, second, third = (index for index, _, _ in by_hand(result, frames)[:3])
    clips = [toys[index]["clips"][frames] for index in (first, second, third)]

    class Damaged(ToyVideos):
        def __getitem__(self, key: int | tuple[int, int]) -> dict:
            if key == first:
                raise VideoError(self.records[first].path, "was deleted")
            return super().__getitem__(key)

    path = mistakes.save_mistakes(result, Damaged(33, failed=(second,)), NAMES, tmp_path / "m.png")

    picture = read_picture(path)
    shown = [bool(places(picture, enlarged(clip[:, 0], 12))) for clip in clips]
    assert shown == [False, False, True]
    assert not (picture[:, 16:112] == 0).all((1, 2)).any()  # no black frames in their place


def test_a_network_without_mistakes_has_an_empty_sheet(tmp_path: Path) -> None:
    toys = ToyVideos(5)
    result = swept(toys)
    kept = result.predictions
    kept.logits.update({t: torch.eye(CLASSES)[kept.label] for t in kept.logits})

    picture = read_picture(mistakes.save_mistakes(result, toys, NAMES, tmp_path / "m.png"))

    assert picture.shape[0] < 100
