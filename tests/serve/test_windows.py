"""Windows of long videos: their times, their predictions, and the segments they are joined to."""

from __future__ import annotations

import math

import pytest
import torch
from serve_files import CLASSES, answer, write_video

from ffn.data import VideoError
from ffn.data.decoding import open_video
from ffn.serve import Prediction, Segment, merge_windows
from ffn.serve.clips import READ_TOGETHER, Windows


def test_times() -> None:
    for seconds, step, duration, expected in (
        (2, 1, 4, [(0, 2), (1, 3), (2, 4)]),
        (2, 1, 4.5, [(0, 2), (1, 3), (2, 4), (2.5, 4.5)]),  # the last one ends with the video
        (2, 2, 5, [(0, 2), (2, 4), (3, 5)]),
        (2, None, 3, [(0, 2), (1, 3)]),  # half a window
        (2, 1, 2, [(0, 2)]),
        (2, 1, 0.3, [(0, 0.3)]),
        (0.1, 0.1, 0.3, [(0, 0.1), (0.1, 0.2), (0.2, 0.3)]),  # 3 x 0.1 is not 0.3
    ):
        found = list(Windows(seconds, step).of(duration))
        assert [start for start, _ in found] == pytest.approx([start for start, _ in expected])
        assert [end for _, end in found] == pytest.approx([end for _, end in expected])


def test_wrong_windows(predictor, footage) -> None:
    for wrong, options in (
        ("seconds", {"seconds": 0}),
        ("step", {"seconds": 2, "step": 3}),
        ("fps", {"seconds": 2, "fps": math.inf}),
    ):
        with pytest.raises(ValueError, match=wrong):
            predictor.windows(footage, **options)
    with pytest.raises(VideoError, match="70 frames in memory: its frames have no times; give"):
        list(predictor.windows(footage, 1.0))


def test_windows_are_predicted_as_videos_of_their_own(predictor, footage, tmp_path) -> None:
    """A window of 0.8 s has 8 of the 10 frames per second; the files are lossless."""
    mp4 = write_video(tmp_path / "footage.mp4", footage, rate=10)
    avi = write_video(tmp_path / "footage.avi", footage, rate=10, codec="ffv1")
    assert open_video(avi).timeline.not_seekable
    starts = [0, 3, 6, 9, 12]
    for given, fps in ((footage, 10), (mp4, None), (avi, None)):
        found = list(predictor.windows(given, 0.8, step=0.3, fps=fps, frames=4, batch_size=3))

        assert len(found) == 22
        assert (found[-1].start, found[-1].end) == pytest.approx((6.2, 7.0))
        for window, first in zip(found, [*starts, *range(15, 63, 3), 62], strict=True):
            alone = predictor(footage[first : first + 8], frames=4)
            torch.testing.assert_close(window.probabilities, alone.probabilities)
            assert window.indices == tuple(first + index for index in alone.indices)


def test_the_number_of_frames_is_chosen_for_each_window(predictor, footage, tmp_path) -> None:
    """Of 25 frames per second; auto takes 8 per second, or the smallest count."""
    path = write_video(tmp_path / "footage.mp4", footage, rate=25)
    assert {w.frames for w in predictor.windows(path, 1.0, step=0.1, frames="auto")} == {8}
    found = list(predictor.windows(path, 0.04, frames="auto"))
    assert {window.frames for window in found} == {2}
    assert found[0].why == "auto: of 1 in 0.0 s"


def test_few_frames_are_in_memory_at_once(predictor, footage, tmp_path, monkeypatch) -> None:
    path = write_video(tmp_path / "footage.mp4", footage, rate=10)
    read, sizes = type(open_video(path)).read, []

    def spy(self, indices):
        sizes.append(len(indices := list(indices)))
        return read(self, indices)

    monkeypatch.setattr(type(open_video(path)), "read", spy)
    found = list(predictor.windows(path, 2.0, step=0.1, frames=12))

    assert len(found) == 51
    assert max(sizes) <= READ_TOGETHER < sum(sizes)
    assert len(sizes) < 51 / 3  # windows that overlap are read together


def window(start, end, probabilities, *, multi_label=False) -> Prediction:
    return answer(probabilities, CLASSES, multi_label=multi_label, start=start, end=end)


def segments(found: list[Segment]) -> list[tuple[float, float, str, float]]:
    return [(s.start, s.end, s.label, pytest.approx(s.probability, abs=1e-6)) for s in found]


def test_segments_have_the_most_probable_label_of_the_mean() -> None:
    """By hand: up is 0.8 until 1, (0.8 + 0.4) / 2 until 2, 0.4 and 0.1 afterwards."""
    windows = [
        window(0, 2, [0.8, 0.2, 0.0]),
        window(1, 3, [0.4, 0.6, 0.0]),
        window(2, 4, [0.1, 0.9, 0.0]),
    ]
    found = merge_windows(reversed(windows))
    assert segments(found) == [
        (0, 2, "up", (0.8 + 0.6) / 2),
        (2, 4, "down", ((0.6 + 0.9) / 2 + 0.9) / 2),
    ]


def test_segments_of_several_labels_may_overlap() -> None:
    windows = [
        window(0, 2, [0.9, 0.6, 0.0], multi_label=True),
        window(2, 4, [0.2, 0.7, 0.0], multi_label=True),
        window(4, 5, [0.8, 0.1, 0.0], multi_label=True),
    ]
    assert segments(merge_windows(windows)) == [
        (0, 2, "up", 0.9),
        (0, 4, "down", 0.65),
        (4, 5, "up", 0.8),
    ]
    assert segments(merge_windows(windows, threshold=0.85)) == [(0, 2, "up", 0.9)]


def test_gaps_between_windows_and_no_windows() -> None:
    found = merge_windows([window(0, 1, [0.9, 0.1, 0.0]), window(2, 3, [0.7, 0.3, 0.0])])
    assert segments(found) == [(0, 1, "up", 0.9), (2, 3, "up", 0.7)]
    assert merge_windows([]) == []
    with pytest.raises(ValueError, match="has no start and end"):
        merge_windows([window(None, None, [1.0, 0.0, 0.0])])
