"""Early exit on videos: predict stage by stage (`ffn.evaluation.early_exit`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from ffn.evaluation.early_exit import EarlyExit
from ffn.serve.clips import Clip

Run = Callable[[Sequence[Clip]], tuple[Tensor, float]]
"""Logits (B, K) on the CPU of clips of one shape, and the milliseconds of each."""


def run_early_exit(
    early_exit: EarlyExit, videos: Sequence[Sequence[Clip]], run: Run
) -> list[tuple[Clip, Tensor, float]]:
    """Answer videos together: those that go on form the batch of the next stage.

    Args:
        early_exit: stages and thresholds.
        videos: the clips of each video, one for each stage.
        run: the network.

    Returns:
        Per video the clip of the stage that answered, with the stages in ``why``; the probabilities
        (K,), float32; and the milliseconds of all its forward passes.
    """
    spent = [0.0] * len(videos)
    answers: dict[int, tuple[Clip, Tensor, float]] = {}
    for stage in range(len(early_exit.stages)):
        pending = [n for n in range(len(videos)) if n not in answers]
        if not pending:
            break
        logits, model_ms = run([videos[n][stage] for n in pending])
        probabilities = logits.double().softmax(-1)
        stops = early_exit.stops(stage, probabilities).tolist()
        seen = ", ".join(map(str, early_exit.stages[: stage + 1]))
        for n, row, stopped in zip(pending, probabilities, stops, strict=True):
            spent[n] += model_ms
            if stopped:
                clip = replace(videos[n][stage], why=f"early exit after {seen} frames")
                answers[n] = clip, row.float(), spent[n]
    return [answers[n] for n in range(len(videos))]
