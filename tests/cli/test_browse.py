"""``ffn browse``: the picture has the clips of the first training batch and of the test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ffn.cli import browse, main
from ffn.data.contact_sheet import Panel
from ffn.datasets.synthetic import generate
from ffn.engine.build_data import (
    build_preprocessing,
    build_test_loader,
    build_train_loader,
    read_config_splits,
)
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.mixup import BatchMix

ALONE = World(0, 1, torch.device("cpu"))
CONFIG = """\
task:
  frames: [2, 4]
data:
  root: {root}
  workers: 0
  crop: 24
  resize: 28
train:
  batch_size: 8
  seed: 3
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos of 36 pixels and a config."""
    root = tmp_path_factory.mktemp("motion") / "data"
    generate(root, train_per_class=1, val_per_class=1, size=36, frames=30)
    (root / "config.yaml").write_text(CONFIG.format(root=root))
    return root


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Panel]:
    """The panels of the picture that a test draws."""
    found: list[Panel] = []
    real = browse._panels

    def keep(*arguments: Any) -> list[Panel]:
        found.extend(real(*arguments))
        return found

    monkeypatch.setattr(browse, "_panels", keep)
    return found


def draw(root: Path, output: Path, *options: str) -> int:
    return main(["browse", str(root / "config.yaml"), "--output", str(output), *options])


def training_batch(root: Path, *options: str) -> dict[str, Any]:
    config = load_config(root / "config.yaml", options)
    return next(iter(build_train_loader(config, read_config_splits(config.data), ALONE)))


def test_the_clips_are_those_of_the_loaders(
    root: Path, tmp_path: Path, panels: list[Panel]
) -> None:
    """The batch of a training is larger than the picture; the samples are the same."""
    options = ["data.random_erasing=0.5", "data.flip=random", "data.color_jitter=[0.4,0.4,0.4,0]"]
    output = tmp_path / "new" / "samples.png"

    assert draw(root, output, "--videos", "3", "--frames", "3", *options) == 0

    assert output.read_bytes()[:4] == b"\x89PNG"
    config = load_config(root / "config.yaml", options)
    splits = read_config_splits(config.data)
    tests = build_test_loader(
        config,
        replace(splits, val=splits.train),
        ALONE,
        frames=[3],
        preprocessing=build_preprocessing(config.data),
    ).dataset
    batch = training_batch(root, *options)
    assert len(panels) == 3
    for place, panel in enumerate(panels):
        two, four, tested = (strip.clip for strip in panel.strips)
        assert torch.equal(two, batch["clips"][2][place])
        assert torch.equal(four, batch["clips"][4][place])
        assert torch.equal(tested, tests[int(batch["index"][place])]["clips"][3])


def test_mixed_clips_are_those_of_the_first_step(
    root: Path, tmp_path: Path, panels: list[Panel]
) -> None:
    options = ["train.batch_size=4", "train.mixup=0.8", "train.label_smoothing=0.12"]

    assert draw(root, tmp_path / "samples.png", "--videos", "4", *options) == 0

    batch = training_batch(root, *options)
    clips = {view: clip.double() for view, clip in batch["clips"].items()}
    mix = BatchMix(12, mixup=0.8, smoothing=0.12, seed=3)
    mixed = mix({**batch, "clips": clips}, step=0, micro=0, rank=0)
    classes = read_config_splits(load_config(root / "config.yaml", []).data).classes
    for place, panel in enumerate(panels):
        for strip, clip in zip(panel.strips, mixed["clips"].values(), strict=False):
            assert (strip.clip - clip[place]).abs().max() < 0.51
        shares = {name: mixed["label"][place][i] for i, name in enumerate(classes)}
        two = sorted(shares, key=lambda name: -shares[name])[:2]
        text = " + ".join(f"{shares[name]:.2f} {name}" for name in two)
        assert panel.lines[1] == f"training, label: {text}"
    assert len(panels) == 4


def test_unreadable_videos(root: Path, tmp_path: Path, panels: list[Panel], capsys) -> None:
    rows = (root / "train.csv").read_text().splitlines()
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = f"{tmp_path}/broken.mp4,{rows[1].split(',', 1)[1]}"
    (root / "broken.csv").write_text("\n".join([rows[0], broken, *rows[2:]]))
    options, output = ("data.train=broken.csv", "--videos", "12"), tmp_path / "samples.png"
    for on_error, status, number in (("fail", 2, 0), ("skip", 0, 11)):
        panels.clear()
        assert draw(root, output, *options, f"data.on_error={on_error}") == status
        assert f"{tmp_path}/broken.mp4" in capsys.readouterr().err
        assert (output.exists(), len(panels)) == (number > 0, number)
    assert draw(root, output) == 2  # it is there
    assert draw(root, tmp_path / "samples.jpg") == 2
