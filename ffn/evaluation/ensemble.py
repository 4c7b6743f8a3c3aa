"""Ensembles: the mean of the probabilities of several networks, a baseline of FFN (CVPR 2023, §4).

An ensemble runs all of its networks on each video; its cost is the sum of theirs. It is computed
from the predictions of the networks. Not included: a weight per network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from ffn.evaluation.metrics import dataset_metrics, video_results
from ffn.evaluation.results import Predictions, Row, Sweep
from ffn.labels import label_kind


def ensemble(sweeps: Sequence[Sweep], *, name: str = "ensemble") -> Sweep:
    """Average the probabilities of several networks at every frame count.

    Args:
        sweeps: of the networks, on the same videos at the same frame counts, made with
            ``keep_logits=True``, on rank 0.
        name: of the result, in tables and figures.

    Returns:
        The ensemble. Multiply-accumulates, parameters and latency are sums over the networks. The
        trained counts are those of all networks, and ``measured["networks"]`` holds their names.
        The logits are those of the mean probabilities. A video that one of the networks could not
        read counts as wrong.

    Raises:
        ValueError: the sweeps have no predictions, or their videos, labels, numbers of classes,
            frame counts or protocols differ.
    """
    _check_sweeps(sweeps)
    kept = [sweep.predictions for sweep in sweeps]
    labels = label_kind(kept[0].multi_label)
    predictions = replace(
        kept[0],
        ok=torch.stack([one.ok for one in kept]).all(0),
        logits={
            frames: labels.mean(torch.stack([one.logits[frames] for one in kept]), 0)
            for frames in kept[0].logits
        },
    )
    trained = [sweep.trained_frames for sweep in sweeps]
    return replace(
        sweeps[0],
        name=name,
        trained_frames=None if None in trained else tuple(sorted({*chain(*trained)})),
        params=sum(sweep.params for sweep in sweeps),
        rows=tuple(
            _row(rows, predictions) for rows in zip(*(sweep.rows for sweep in sweeps), strict=True)
        ),
        failed=_reasons(sweeps),
        measured={**sweeps[0].measured, "networks": [sweep.name for sweep in sweeps]},
        predictions=predictions,
    )


def _check_sweeps(sweeps: Sequence[Sweep]) -> None:
    if not sweeps or any(sweep.predictions is None for sweep in sweeps):
        raise ValueError(
            "an ensemble needs the predictions of its networks; call sweep(keep_logits=True) and "
            "form it on rank 0"
        )
    first = sweeps[0]
    for sweep in sweeps[1:]:
        if _tested(sweep) != _tested(first):
            raise ValueError(
                f"{first.name} and {sweep.name} were tested on different videos, labels, frame "
                "counts, classes or protocols; an ensemble needs the same"
            )


def _tested(sweep: Sweep) -> tuple[Any, ...]:
    """What is equal for all networks of an ensemble."""
    kept = sweep.predictions
    classes = {frames: logits.shape[1] for frames, logits in kept.logits.items()}
    return sweep.protocol, kept.paths, kept.label.tolist(), classes


def _reasons(sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    """The reason of each video that one of the networks could not read, in their order."""
    reasons: dict[int, str] = {}
    for sweep in sweeps:
        failed = (~sweep.predictions.ok).nonzero().flatten().tolist()
        reasons = dict(zip(failed, sweep.failed, strict=False)) | reasons
    return tuple(reason for _, reason in sorted(reasons.items()))


def _row(rows: Sequence[Row], predictions: Predictions) -> Row:
    """The ensemble at the frame count of the rows of its networks."""
    frames, label, ok = rows[0].frames, predictions.label, predictions.ok
    results = video_results(predictions.logits[frames], label, ok)
    latencies = [row.latency_ms for row in rows]
    return replace(
        rows[0],
        subnet=None,
        metrics=dataset_metrics(results, label),
        gmacs=sum(row.gmacs for row in rows),
        params=sum(row.params for row in rows),
        latency_ms=None if None in latencies else sum(latencies),
        failed=int((~ok).sum()),
    )
