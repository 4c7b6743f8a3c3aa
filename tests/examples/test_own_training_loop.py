"""The loop of the example trains the weights that `tools/train.py` trains with the config."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import ffn
from ffn.cli import main
from ffn.datasets.synthetic import generate
from ffn.engine.checkpoints import load_checkpoint

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_training_loop.py"


@pytest.mark.slow
def test_it_equals_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The same losses; the same changes of the weights, up to rounding that AdamW amplifies."""
    root, run = tmp_path / "motion", tmp_path / "run"
    generate(root, train_per_class=4, val_per_class=2)
    config = ROOT / "configs/quickstart/motion_flexible.yaml"
    options = ("train.epochs=3", "log.interval=1", "data.test_frames=[4,8,16]")
    assert main(["train", str(config), f"data.root={root}", f"log.output={run}", *options]) == 0
    expected = load_checkpoint(run / "last.pt")["model"]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLE), str(root), "3"])
        own = dict(runpy.run_path(str(EXAMPLE))["model"].state_dict())
    torch.manual_seed(0)
    start = ffn.convert(ffn.create_model("tsm_tiny", num_classes=12, dropout=0.0), (4, 8, 16))
    first = {k: v for k, v in start.state_dict().items() if "running" not in k and v.ndim}

    shown = capsys.readouterr().out
    log = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    losses = [entry["train/loss"] for entry in log if "train/loss" in entry][2::3]
    found = [float(number) for number in re.findall(r"epoch \d: loss (\S+)", shown)]
    assert found == pytest.approx(losses, abs=1e-3)
    assert len(re.findall(r"(4|8|16) frames: top-1 [\d.]+ %", shown)) == 3
    for count in ("4", "8", "16", None):
        names = [k for k in first if ({*k.split(".")} & {"4", "8", "16"} or {None}) & {count}]
        changes = [
            torch.cat([(state[name].detach() - first[name].detach()).flatten() for name in names])
            for state in (own, expected)
        ]
        assert len(names) >= 14
        assert torch.cosine_similarity(*changes, 0) > 0.9
        assert 0.9 < changes[0].norm() / changes[1].norm() < 1.1
