"""Predictions of a network that gains from more frames, for tests of cascades."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ffn.evaluation import Predictions, Row, Sweep, save_predictions

GMACS = {2: 0.5, 4: 1.0, 8: 2.0}


def predictions(videos: int = 120, seed: int = 0, classes: int = 3, **more: object) -> Predictions:
    """Logits at each count of `GMACS`: a signal that grows with the count, noise, and a bias."""
    random = torch.Generator().manual_seed(seed)
    label = torch.arange(videos) % classes
    easy = torch.rand(videos, 1, generator=random) * 3
    logits = {}
    for frames in GMACS:
        noise = torch.randn(videos, classes, generator=random)
        signal = torch.nn.functional.one_hot(label, classes) * easy * (frames / 4) ** 0.7
        logits[frames] = 2 * (signal + noise) + torch.linspace(0, 1, classes)
    paths = tuple(f"{seed}/{n}.mp4" for n in range(videos))
    content = {"label": label, "ok": torch.ones(videos, dtype=torch.bool), "logits": logits}
    return replace(Predictions(paths, **content), **more)


def save(path: Path, kept: Predictions, digest: str | None = None) -> Path:
    """The file of `ffn test --save-predictions` for these predictions."""
    rows = tuple(
        Row(n, n, 50.0, 90.0, 50.0, GMACS[n], 1000, None, len(kept.label), 0) for n in kept.logits
    )
    sweep = Sweep(
        kept.name or "net.s0", (2, 4, 8), 1000, (8, 8), rows, (), {}, kept.protocol or "1x1", kept
    )
    return save_predictions(sweep, path, weights_sha256=digest)
