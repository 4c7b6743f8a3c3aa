"""Pictures and videos of predictions: what is in them."""

from __future__ import annotations

from dataclasses import replace

import av
import numpy as np
import pytest
import torch
from pictures import enlarged, places, read_picture
from PIL import Image
from serve_files import write_video

from ffn.serve import Predictor, Segment
from ffn.serve.pictures import FRAMES_PER_SECOND, save, save_video

PATTERN = "{:05d}.jpg"


@pytest.fixture(scope="module")
def footage() -> np.ndarray:
    """Thirty frames of one color each, the last ones brighter."""
    levels = np.linspace(10, 240, 30).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (30, 90, 120, 3)).copy()


def frames_of(path) -> tuple[list[float], np.ndarray]:
    """Times and pixels of a video."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return [frame.time for frame in frames], np.stack(
        [f.to_ndarray(format="rgb24") for f in frames]
    )


@pytest.fixture
def predicted(weights, footage, tmp_path):
    """The arguments of `save`, and a heat map that is hot in the last frames."""
    path = write_video(tmp_path / "video.mp4", footage, rate=10)
    predictor = Predictor(weights, precision="fp32")
    clip = predictor.reader(6).read(path)
    heat = predictor.heat_map(clip)
    values = torch.zeros_like(heat.values)
    values[4:] = 1
    return (path, clip, predictor.predict([clip])[0]), replace(heat, values=values)


def frames_of_gif(path) -> np.ndarray:
    """Frames (T, H, W, 3) above the label."""
    shown = []
    with Image.open(path) as image:
        assert image.info["duration"] == 500  # six frames in 3 s
        for number in range(image.n_frames):
            image.seek(number)
            shown.append(np.asarray(image.convert("RGB"))[:210])
    return np.stack(shown)


def test_a_gif_has_the_frames_of_the_clip_and_the_heat_map(predicted, tmp_path) -> None:
    given, heat = predicted
    save(tmp_path / "out.gif", *given, pattern=PATTERN)
    save(tmp_path / "heat.gif", *given, pattern=PATTERN, heat=heat)

    shown, frames = frames_of_gif(tmp_path / "out.gif"), given[1].pixels.transpose(0, 1)
    assert shown.shape[2] == 256
    for pixels, frame in zip(shown, frames.numpy(), strict=True):
        assert np.abs(pixels.mean() - frame.mean()) < 2  # 256 colors
    colored = np.ptp(frames_of_gif(tmp_path / "heat.gif").astype(int), -1).max((1, 2)) > 60
    assert colored.tolist() == [False] * 4 + [True] * 2
    with pytest.raises(ValueError, match=r"out\.mp4"):
        save(tmp_path / "out.mp4", *given, pattern=PATTERN, heat=heat)


def test_a_sheet_has_the_frames_of_the_clip_and_the_heat_map(predicted, tmp_path) -> None:
    given, heat = predicted
    save(tmp_path / "out.png", *given, pattern=PATTERN)
    save(tmp_path / "heat.png", *given, pattern=PATTERN, heat=heat)

    frames = given[1].pixels.transpose(0, 1)
    sheet = read_picture(tmp_path / "out.png")
    assert all(places(sheet, enlarged(frame, 3)) for frame in frames)  # 32 to 96 px
    sheet = read_picture(tmp_path / "heat.png")
    drawn = torch.from_numpy(heat.overlay()).movedim(-1, 1)
    for shown in (frames, drawn):
        corners = [places(sheet, enlarged(frame, 6)) for frame in shown]
        assert [len(corner) for corner in corners] == [2] * 4 + [1] * 2  # gray with and without


def test_a_video_keeps_its_frames_and_times(predicted, footage, tmp_path) -> None:
    save(tmp_path / "out.mp4", *predicted[0], pattern=PATTERN)

    times, pixels = frames_of(tmp_path / "out.mp4")
    assert times == pytest.approx([n / 10 for n in range(30)], abs=1e-3)
    assert pixels.shape == footage.shape
    assert np.abs(pixels[:, :60].astype(int) - footage[:, :60]).mean() < 3  # above the label
    text = pixels[:, -12:].reshape(30, -1)
    assert (text.max(1).astype(int) - text.min(1) > 80).all()  # white on dark, in all frames


def test_a_video_has_the_label_of_each_time(footage, tmp_path) -> None:
    path = write_video(tmp_path / "video.mp4", footage, rate=10)
    labelled = [Segment(1.0, 2.0, "up", 0.9)]

    save_video(tmp_path / "out.mp4", path, labelled, pattern=PATTERN)
    save_video(tmp_path / "none.mp4", path, [], pattern=PATTERN)

    _, with_label = frames_of(tmp_path / "out.mp4")
    _, without = frames_of(tmp_path / "none.mp4")
    differ = np.abs(with_label.astype(int) - without).reshape(30, -1).max(1) > 60
    assert differ.tolist() == [False] * 10 + [True] * 10 + [False] * 10


def test_frames_in_memory_and_odd_sizes(footage, tmp_path) -> None:
    odd = torch.from_numpy(footage[:5, :33, :47].copy())
    for fps in (None, 4):
        save_video(tmp_path / "odd.mp4", odd, [], pattern=PATTERN, fps=fps)
        times, pixels = frames_of(tmp_path / "odd.mp4")
        assert pixels.shape == (5, 32, 46, 3)
        assert times == pytest.approx([n / (fps or FRAMES_PER_SECOND) for n in range(5)], abs=1e-3)


def test_a_failed_video_leaves_no_file(footage, tmp_path) -> None:
    path = write_video(tmp_path / "video.mp4", footage, rate=10)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(Exception, match=r"video\.mp4"):
        save_video(tmp_path / "out.mp4", path, [], pattern=PATTERN)
    assert [p.name for p in tmp_path.iterdir()] == ["video.mp4"]
