"""Accuracy of a cross-validation: each clip is tested by networks that were not trained on it.

The training is repeated per fold and seed. A clip counts once per seed; its score is the mean over
the seeds. Intervals are those of the bootstrap over groups of clips (``ffn.evaluation.bootstrap``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from torch import Tensor

from ffn.evaluation.bootstrap import LEVEL, RESAMPLES, SEED, Interval, bootstrap_means
from ffn.evaluation.metrics import accuracy, label_ranks

MEASURES = ("top1", "top1_shuffled", "class_groups", "class_groups_shuffled")


@dataclass(frozen=True)
class CrossValidation:
    """Predictions for all N clips of a data set, from S seeds; K classes.

    Attributes:
        name: of the network, in tables and figures.
        trained_frames: frame counts of its training.
        seeds: of the trainings.
        classes: class names.
        paths: of the clips; a path occurs several times if its clips are parts of one file.
        label: (N,), class indices.
        groups: of the clips.
        folds: of the clips, from 0.
        fingerprint: of the clips, their labels, groups and folds.
        logits: per frame count (S, N, K); NaN for clips that cannot be decoded.
        shuffled: the same for clips with their frames in random order, if they were tested.
        class_groups: class indices; the second measure is the accuracy within these groups.
    """

    name: str
    trained_frames: tuple[int, ...]
    seeds: tuple[int, ...]
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    label: Tensor
    groups: tuple[str, ...]
    folds: tuple[int, ...]
    fingerprint: str
    logits: dict[int, Tensor]
    shuffled: dict[int, Tensor] | None = None
    class_groups: tuple[tuple[int, ...], ...] = ()

    @property
    def frames(self) -> list[int]:
        """The tested frame counts, ascending."""
        return sorted(self.logits)

    @property
    def measures(self) -> list[str]:
        """Names of the measures that the predictions allow, of `MEASURES`."""
        found = ["top1"] + ["top1_shuffled"] * (self.shuffled is not None)
        if self.class_groups:
            found += [name.replace("top1", "class_groups") for name in found]
        return found

    def scores(self, measure: str, frames: int) -> np.ndarray:
        """Score of each seed and clip: 1 right, 0 wrong, NaN not part of the measure.

        Returns:
            (S, N).
        """
        shuffled = measure.endswith("_shuffled")
        logits = (self.shuffled if shuffled else self.logits)[frames]
        if measure.startswith("top1"):
            return np.stack([(label_ranks(x, self.label) == 0).double().numpy() for x in logits])
        return np.stack([right_within(x, self.label, self.class_groups) for x in logits])


def right_within(
    logits: Tensor, label: Tensor, class_groups: Sequence[Sequence[int]]
) -> np.ndarray:
    """Whether the label has the largest logit of its group of classes.

    Args:
        logits: (N, K).
        label: (N,), class indices.
        class_groups: disjoint groups of class indices.

    Returns:
        (N,): 1 right, 0 wrong, NaN for a label that is in no group.
    """
    right = np.full(len(label), np.nan)
    for classes in class_groups:
        for position, own in enumerate(classes):
            rows = label == own
            ranks = label_ranks(logits[rows][:, list(classes)], 0 * label[rows] + position)
            right[rows.numpy()] = (ranks == 0).double().numpy()
    return right


def parse_class_groups(texts: Sequence[str], classes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Class indices of groups written as "push,pull".

    Raises:
        ValueError: a class is unknown or occurs twice, or a group has one class only.
    """
    groups = [[name.strip() for name in text.split(",")] for text in texts]
    for name, number in Counter(name for group in groups for name in group).items():
        if name not in classes:
            close = get_close_matches(name, classes, n=1, cutoff=0.0)
            raise ValueError(
                f"class groups: no class {name!r}; the closest is {close[0]!r}. Separate the "
                "classes of a group by commas, and groups by spaces"
            )
        if number > 1:
            raise ValueError(f"class groups: {name!r} occurs {number} times; give it one group")
    for group in groups:
        if len(group) < 2:
            raise ValueError(
                f"class groups: {group[0]!r} is alone; a group has two classes or more"
            )
    return tuple(tuple(classes.index(name) for name in group) for group in groups)


def summarise_cross_validation(found: CrossValidation) -> dict[str, Any]:
    """All numbers of a cross-validation as plain values; accuracies in percent.

    Per frame count and measure: ``mean`` over clips and seeds, ``interval``, the accuracy
    ``per_seed`` and ``per_fold`` (mean over seeds), for top-1 also ``mean_class``. With shuffled
    frames also the difference ``order``: top-1 minus top-1 of shuffled frames.
    """
    counts = Counter(found.label.tolist())
    grouped = [[counts[c] for c in group if counts[c]] for group in found.class_groups]
    clips = sum(map(sum, grouped))
    unreadable = found.logits[found.frames[0]].isnan().any(-1).any(0).tolist()
    summary = {
        "trained_frames": list(found.trained_frames),
        "seeds": list(found.seeds),
        "clips": len(found.label),
        "classes": {name: counts[i] for i, name in enumerate(found.classes)},
        "groups": len(set(found.groups)),
        "fold_clips": [number for _, number in sorted(Counter(found.folds).items())],
        "majority": _percent(max(counts.values()) / len(found.label)),
        "unreadable": [p for p, bad in zip(found.paths, unreadable, strict=True) if bad],
        "bootstrap": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED, "unit": "group"},
        "fingerprint": found.fingerprint,
    }
    if found.class_groups:
        summary["class_groups"] = {
            "groups": [[found.classes[c] for c in group] for group in found.class_groups],
            "clips": clips,
            "majority": _percent(sum(max(g, default=0) for g in grouped) / clips),
        }
    rows = [{"frames": frames} for frames in found.frames]
    for measure in found.measures:
        scores = np.stack([found.scores(measure, frames) for frames in found.frames])  # (T, S, N)
        for row, block in zip(rows, _measure(scores, found), strict=True):
            row[measure] = block
    for row in rows:
        row["top1"]["mean_class"] = _mean_class(found, row["frames"])
    if found.shuffled is not None:
        effects = differences(found, found, "top1", "top1_shuffled", found.frames)
        for row, effect in zip(rows, effects, strict=True):
            row["order"] = as_percent(effect)
    return {**summary, "rows": rows}


def differences(
    one: CrossValidation, other: CrossValidation, measure: str, against: str, frames: Sequence[int]
) -> list[Interval]:
    """Paired differences ``measure`` of one minus ``against`` of another, per frame count.

    Both have the same clips. Each resample of the groups takes the same groups for both.
    """
    values = np.stack(
        [one.scores(measure, t).mean(0) - other.scores(against, t).mean(0) for t in frames], 1
    )  # (N, T)
    keep = ~np.isnan(values[:, 0])
    return bootstrap_means(values[keep], np.array(one.groups)[keep])


def as_percent(interval: Interval) -> dict[str, Any]:
    """``mean`` and ``interval`` in percent, as plain values."""
    bounds = [_percent(interval.low), _percent(interval.high)]
    return {"mean": _percent(interval.mean), "interval": bounds}


def _measure(scores: np.ndarray, found: CrossValidation) -> list[dict[str, Any]]:
    """The numbers of one measure from its scores (T, S, N), per frame count."""
    keep = ~np.isnan(scores[0, 0])
    scores, folds = scores[..., keep], np.array(found.folds)[keep]
    intervals = bootstrap_means(scores.mean(1).T, np.array(found.groups)[keep])
    blocks = []
    for interval, own in zip(intervals, scores, strict=True):
        in_fold = (own[:, folds == fold] for fold in sorted(set(found.folds)))
        blocks.append(
            {
                **as_percent(interval),
                "per_seed": [_percent(seed.mean()) for seed in own],
                "per_fold": [_percent(x.mean()) if x.size else None for x in in_fold],
            }
        )
    return blocks


def _mean_class(found: CrossValidation, frames: int) -> float:
    """Mean-class accuracy over all clips, in percent, mean over seeds."""
    seeds = [
        accuracy(label_ranks(logits, found.label), found.label)["mean_class"]
        for logits in found.logits[frames]
    ]
    return _percent(sum(seeds) / len(seeds) / 100)


def _percent(share: float) -> float:
    return round(100 * float(share), 4)  # more digits than are shown: rounding twice may differ
