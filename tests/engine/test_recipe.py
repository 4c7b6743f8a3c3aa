"""Warnings at the start of a run: learning rates, flips, small batches, start weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from engine_toys import ROOT, build

from ffn.engine import build_messages
from ffn.engine.build_network import scaled_learning_rate
from ffn.engine.config import load_config

CLASSES = ["Pushing left", "Pushing right", "Cleft"]


def test_shipped_configs_have_published_rates() -> None:
    for path in sorted((ROOT / "configs").rglob("*.yaml")):
        options = load_config(path)
        found = build_messages.learning_rate_warnings(
            options.model.name,
            options.optim.name,
            scaled_learning_rate(options),
            options.train.batch_size,
            fine_tuning=options.model.weights is not None,
        )
        assert not list(found), path


def test_learning_rate_that_does_not_fit_the_batch() -> None:
    def warnings(lr: float, batch_size: int, name: str = "tsm_r50", by: str = "sgd") -> list[str]:
        return [*build_messages.learning_rate_warnings(name, by, lr, batch_size)]

    assert warnings(0.01, 128) == []  # within a factor of 4
    assert len(warnings(0.01, 256)) == 1
    assert warnings(0.08, 256) == []
    for other in ({"by": "adamw"}, {"name": "mine_r50"}, {"name": "tsm_tiny"}):
        assert warnings(0.5, 32, **other) == []  # there is no published rate


def test_random_flip_of_classes_with_sides() -> None:
    assert len([*build_messages.flip_warnings(CLASSES)]) == 1
    assert list(build_messages.flip_warnings(["cleft", "bright"])) == []


def test_start_weights() -> None:
    def warnings(share: float = 1.0, start: list[str] | None = CLASSES) -> list[str]:
        match, record = SimpleNamespace(share=share, classes=None), SimpleNamespace(classes=start)
        return [*build_messages.start_weight_warnings("best.pt", match, record, CLASSES)]

    assert warnings() == []
    assert warnings(start=None) == []
    assert "40%" in warnings(share=0.4)[0]
    assert "2 of 3 differ" in warnings(start=CLASSES[::-1])[0]


def test_warnings_of_a_run(videos: Path, tmp_path: Path) -> None:
    more = ("data.flip=random", "train.freeze=[stem]")
    lines = [line for line in build(videos, tmp_path, *more).settings if "warning: " in line]
    for part in ("BatchNorm takes its statistics over 6", "left or right", "random weights"):
        assert [line for line in lines if part in line]
