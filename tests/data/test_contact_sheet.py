"""Contact sheets hold the frames, in their order and without overlap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pictures import enlarged, places, read_picture

from ffn.data.contact_sheet import Panel, Strip, save_contact_sheet


def noise(frames: int, height: int = 24, width: int = 24, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, frames, height, width), generator=generator).byte()


def found(picture: np.ndarray, clip: torch.Tensor, factor: int = 4) -> list[tuple[int, int]]:
    """The place of each frame; each occurs once."""
    corners = [places(picture, enlarged(frame, factor)) for frame in clip.transpose(0, 1)]
    assert all(len(corner) == 1 for corner in corners)
    return [corner[0] for corner in corners]


def test_long_clips_continue_in_the_next_line(tmp_path: Path) -> None:
    clip = noise(20)
    panel = Panel("title", ["a line"], [Strip(clip, "label")])

    picture = read_picture(save_contact_sheet(tmp_path / "sheet.png", "sheet", [panel]))

    corners = found(picture, clip)
    assert corners == sorted(corners)  # row by row
    first, second = corners[:16], corners[16:]
    assert len({y for y, _ in first}) == len({y for y, _ in second}) == 1
    assert np.diff([x for _, x in first]).min() > 96
    assert second[0][0] >= first[0][0] + 96
    assert [x for _, x in second] == [x for _, x in first[:4]]


def test_long_lines_are_shortened(tmp_path: Path) -> None:
    text = "beginning " * 50 + "the end"
    panel = Panel(text, [text], [Strip(noise(1), text)])
    picture = read_picture(save_contact_sheet(tmp_path / "sheet.png", text, [panel]))

    assert picture.shape[1] == 16 + 596 + 16
    above = picture[:70]
    assert (above[:, 300:600] < 128).any()
    assert (above[:, -8:] == 255).all()
