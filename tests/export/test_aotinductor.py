"""AOTInductor packages against the networks they come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import ffn

SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@torch.no_grad()
def test_a_package(tmp_path: Path) -> None:
    model = ffn.load(SHIPPED)
    path = tmp_path / "net.aoti.pt2"

    report = ffn.export(model, path, frames=8, dynamic_frames=True)

    run = torch._inductor.aoti_load_package(str(path))
    for batch, frames in ((1, 8), (5, 3)):
        clip = torch.randn(batch, 3, frames, 24, 24)
        expected = model(clip, active=8)
        assert (run(clip) - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert json.loads(run.get_metadata()["classes"]) == list(model.record.classes)
    assert report.difference <= 1e-4 * report.largest
