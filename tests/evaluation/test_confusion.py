"""Results per class, against loops over the videos and scikit-learn."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics
from tables import read_csv

from ffn.evaluation import Predictions, confusion, confusion_matrix, save_prediction_table
from ffn.evaluation.confusion import save_classes, save_confusion
from ffn.evaluation.plots import new_figure

CLASSES = ["jump", "run, fast", "$ sit_{$", "Hände", "never"]


def predictions(videos: int = 60, classes: int = 5, seed: int = 0) -> Predictions:
    """Random logits; the last class has no video, and every seventh video is unreadable."""
    random = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes - 1, (videos,), generator=random)
    ok = torch.arange(videos) % 7 != 3
    logits = {}
    for frames in (4, 16):
        x = torch.randn(videos, classes, generator=random).round()  # many equal logits
        logits[frames] = x.where(ok[:, None], torch.nan)
    return Predictions(tuple(f"v{i}.mp4" for i in range(videos)), label, ok, logits)


def answers(kept: Predictions, frames: int) -> list[int | None]:
    """The first of the largest logits, in plain Python."""
    rows = kept.logits[frames].tolist()
    return [row.index(max(row)) if ok else None for row, ok in zip(rows, kept.ok, strict=True)]


def matrix_of(kept: Predictions, frames: int, normalize: str | None = None) -> np.ndarray:
    """By scikit-learn."""
    found = zip(kept.label.tolist(), answers(kept, frames), strict=True)
    readable = [pair for pair in found if pair[1] is not None]
    columns = zip(*readable, strict=True)
    return metrics.confusion_matrix(*columns, labels=range(5), normalize=normalize)


@pytest.mark.parametrize("frames", [4, 16])
def test_the_matrix_is_that_of_scikit_learn(frames: int, tmp_path: Path) -> None:
    kept = predictions()
    expected = matrix_of(kept, frames).tolist()

    assert confusion_matrix(kept, frames).tolist() == expected
    with save_confusion(kept, CLASSES, tmp_path / "c.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["frames", "class", *CLASSES]
    assert [row[:2] for row in rows] == [[t, name] for t in ("4", "16") for name in CLASSES]
    assert [[int(x) for x in row[2:]] for row in rows if row[0] == str(frames)] == expected


def test_the_table_per_class_is_that_of_a_loop(tmp_path: Path) -> None:
    kept = predictions()
    rows = iter(read_csv(save_classes(kept, CLASSES, tmp_path / "classes.csv")))
    for frames in (4, 16):
        for label, name in enumerate(CLASSES):
            given = [
                a for a, c in zip(answers(kept, frames), kept.label, strict=True) if c == label
            ]
            wrong = Counter(sorted(a for a in given if a not in (None, label)))
            row = next(rows)
            assert (row["frames"], row["class"]) == (str(frames), name)
            assert (int(row["videos"]), int(row["failed"])) == (len(given), given.count(None))
            if not given:
                assert (row["top1"], row["wrong_answer"], row["wrong_videos"]) == ("", "", "")
                continue
            assert float(row["top1"]) == pytest.approx(100 * given.count(label) / len(given))
            ((answer, times),) = wrong.most_common(1)  # the first of equal ones
            assert (row["wrong_answer"], row["wrong_videos"]) == (CLASSES[answer], str(times))
    assert next(rows, None) is None


def test_predictions_are_written_for_every_video(tmp_path: Path) -> None:
    kept = predictions()

    rows = read_csv(save_prediction_table(kept, CLASSES, tmp_path / "predictions.csv"))

    assert len(rows) == 120
    for i, (path, label) in enumerate(zip(kept.paths, kept.label.tolist(), strict=True)):
        for frames, row in zip((4, 16), rows[2 * i : 2 * i + 2], strict=True):
            answer = answers(kept, frames)[i]
            assert (row["path"], row["frames"], row["label"]) == (path, str(frames), str(label))
            assert row["class"] == CLASSES[label]
            assert row["correct"] == str(answer == label)
            if answer is None:
                assert (row["prediction"], row["probability"]) == ("", "")
                continue
            assert row["prediction"] == CLASSES[answer]
            powers = kept.logits[frames][i].double().exp()
            expected = float(powers[answer] / powers.sum())
            assert float(row["probability"]) == pytest.approx(expected, rel=1e-5)


def test_the_figure_shows_a_matrix_per_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, figure = predictions(), new_figure(4, 4)
    monkeypatch.setattr(confusion, "new_figure", lambda *_: figure)

    path = confusion.save_confusion_figure(kept, CLASSES, tmp_path / "c.png", name="net")

    assert path.read_bytes()[:4] == b"\x89PNG"
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["4 frames", "16 frames"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == CLASSES
    for axes, frames in zip(panels, (4, 16), strict=True):
        expected = 100 * matrix_of(kept, frames, normalize="true")
        np.testing.assert_allclose(axes.images[0].get_array(), expected, rtol=1e-5)
        for text in axes.texts:
            column, row = text.get_position()
            assert text.get_text() == f"{expected[row, column]:.0f}"
