"""The probe task: features of a frozen network are computed once, and mean what clips mean."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from engine_toys import build, same_weights, train, train_until, weights

from ffn.core import WeightAlteration
from ffn.data import VideoDataset, pack
from ffn.engine.config import ConfigError
from ffn.engine.features import FeatureDataset

PROBE = ["task.name=probe", "task.width=64", "task.grid=1", "train.epochs=4", "task.variants=2"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """An empty cache, and the numbers of frames of the clips that a backbone runs."""
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    found, run = [], FeatureDataset._run

    def counted(self: FeatureDataset, clip: torch.Tensor) -> torch.Tensor:
        found.append(clip.shape[1])
        return run(self, clip)

    monkeypatch.setattr(FeatureDataset, "_run", counted)
    return found


def test_features_are_computed_once(
    runs: list[int], videos: Path, start: str, tmp_path: Path
) -> None:
    root = shutil.copytree(videos, tmp_path / "videos")
    train(root, tmp_path / "one", *PROBE, start)
    counts = len({*runs})
    trained, tested = 24, 9
    assert len(runs) == 2 * 2 * trained + counts * tested  # two epochs of four, two views
    first = len(runs)

    train(root, tmp_path / "deeper", *PROBE, start, "task.depth=2")
    assert len(runs) == first
    path = next(root.rglob("*.mp4"))
    os.utime(path, (1, 1))
    train(root, tmp_path / "touched", *PROBE, start)
    assert len(runs) - first in (2 * 2, counts)  # of training or validation
    # Other weights, sub-networks, and layers without weights.
    for option in ("train.precision=fp32", "task.interpolate=true", "model.causal=true"):
        second, given = len(runs), [start] * (not option.startswith("train"))
        train(root, tmp_path / option, *PROBE, *given, option)
        assert len(runs) == second + first


def test_a_stopped_run_continues_bit_for_bit(
    runs: list[int], videos: Path, start: str, tmp_path: Path
) -> None:
    train_until(5, videos, tmp_path / "stopped", *PROBE, start)
    train(videos, tmp_path / "stopped", *PROBE, start)
    both = len(runs)
    (tmp_path / "home/features.db").unlink()
    train(videos, tmp_path / "whole", *PROBE, start)
    assert len(runs) == 2 * both  # none was computed twice
    assert same_weights(tmp_path / "stopped", tmp_path / "whole")

    before, after = torch.load(start.partition("=")[2])["model"], weights(tmp_path / "whole")
    frozen = {key: value for key, value in after.items() if key.startswith("backbone.")}
    assert frozen
    for key, value in frozen.items():
        assert torch.equal(value, before[key.removeprefix("backbone.")]), key


def test_the_network_of_clips_is_that_of_features(
    runs: list[int], videos: Path, start: str, tmp_path: Path
) -> None:
    run = build(videos, tmp_path / "run", *PROBE, start)
    network = run.train_step.network.eval()
    features = next(iter(run.val_loader))
    dataset = run.val_loader.dataset.dataset
    assert isinstance(dataset, VideoDataset)
    for frames, found in features["clips"].items():
        clips = torch.stack([dataset[i]["clips"][frames] for i in features["index"].tolist()])
        with torch.no_grad():
            expected = network(dataset.normalize(clips))
            torch.testing.assert_close(network(found), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "option",
    [
        "train.repeated_aug=2",
        "train.cutmix=1.0",
        "train.activation_checkpointing=true",
        "optim.layer_decay=0.5",
    ],
)
def test_refuses_options_without_effect(
    runs: list[int], videos: Path, tmp_path: Path, option: str
) -> None:
    with pytest.raises(ConfigError, match="probe reads the stored features"):
        build(videos, tmp_path / "run", *PROBE, option)


def test_a_plain_start_has_the_same_features_under_another_probe(
    runs: list[int], videos: Path, tmp_path: Path
) -> None:
    for width in (64, 128):
        run = build(videos, tmp_path / "run", *PROBE, f"task.width={width}")
        backbone = run.train_step.model.model.backbone
        inside = [m for m in backbone.modules() if isinstance(m, WeightAlteration)]
        assert inside
        assert all((p == 0).all() for m in inside for p in m.parameters())


def test_features_of_other_labels_and_stores_have_other_keys(
    runs: list[int], videos: Path, tmp_path: Path
) -> None:
    root = shutil.copytree(videos, tmp_path / "videos")
    (root / "same.txt").write_text("left\nright\nstill\n")
    (root / "other.txt").write_text("left\nstill\nright\n")

    def key(*more: str) -> bytes:
        return build(root, tmp_path / "run", *PROBE, *more).train_loader.dataset._key(0, 0, 4)

    swap = ("data.flip=swap", "data.flip_pairs=[[left, right]]")
    same, other = (f"data.classes={root / name}.txt" for name in ("same", "other"))
    assert key(*swap, same) == key(*swap, same) != key(*swap, other)

    stored, run = ("data.format=store", "data.store=store"), build(root, tmp_path / "run", *PROBE)
    records = [*run.train_loader.dataset.records, *run.val_loader.dataset.records]
    keys = []
    for quality in (90, 90, 20):
        shutil.rmtree(root / "store", ignore_errors=True)
        pack(records, root / "store", root=root, quality=quality)
        keys.append(key(*stored))
    assert keys[0] == keys[1] != keys[2]
