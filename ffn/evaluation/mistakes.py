"""The most confident mistakes of a network: which they are, and a contact sheet of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from ffn.data import VideoError, segment_center
from ffn.data.contact_sheet import Panel, Strip, save_contact_sheet
from ffn.evaluation.results import Predictions, Sweep

SHOWN = 24  # maximum number of mistakes on a sheet
FRAMES = 6  # maximum number of frames of a mistake


def confident_mistakes(predictions: Predictions, frames: int) -> list[tuple[int, int, float]]:
    """The wrong answers, the most probable first.

    Args:
        predictions: of a network.
        frames: one of the tested frame counts.

    Returns:
        (index of the video, answer, its probability) of each.
    """
    answer, probability = predictions.answers(frames)
    wrong = (predictions.ok & (answer != predictions.label)).nonzero().flatten()
    order = wrong[probability[wrong].argsort(descending=True, stable=True)]
    return [(i, int(answer[i]), float(probability[i])) for i in order.tolist()]


def save_mistakes(sweep: Sweep, dataset: Dataset, classes: Sequence[str], path: Path) -> Path:
    """Draw the most confident mistakes at the frame count with the best accuracy into a PNG file.

    A mistake has up to `FRAMES` frames of the clip that the network got; with several clips and
    crops per video, of the middle one. A video that cannot be read again is left out.

    Args:
        sweep: made with ``keep_logits=True``, on rank 0.
        dataset: the data set of the test.
        classes: class names.
        path: the file.
    """
    frames = max(sweep.rows, key=lambda row: row.top1).frames
    mistakes = confident_mistakes(sweep.predictions, frames)
    panels = []
    for index, answer, probability in mistakes[:SHOWN]:
        clip = _read(dataset, index, frames)
        if clip is not None:
            record = dataset.records[index]
            title = f"answer: {classes[answer]}, {100 * probability:.1f} %"
            lines = [f"class: {classes[record.label]}", str(record.path)]
            panels.append(Panel(title, lines, [Strip(clip)]))
    shown = f", the {len(panels)} most confident" if len(panels) < len(mistakes) else ""
    title = f"{sweep.name}, {frames} frames: {len(mistakes)} mistakes{shown}"
    return save_contact_sheet(path, title, panels, columns=2)


def _read(dataset: Dataset, index: int, frames: int) -> Tensor | None:
    """Some frames of a clip (C, T, H, W); None if the video cannot be read."""
    try:
        sample = dataset[index]
    except VideoError:
        return None
    if not sample["ok"]:
        return None
    clip = sample["clips"][frames]
    if clip.ndim == 5:  # (V, C, T, H, W)
        clip = clip[len(clip) // 2]
    return clip[:, segment_center(frames, min(frames, FRAMES))]
