"""AOTInductor packages against the networks they come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import ffn
from ffn.export import export_all

SHIPPED = "tsm_tiny.motion_f4_8_16"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.slow
@needs_compiler
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


@pytest.mark.slow
@needs_compiler
@torch.no_grad()
def test_packages_of_all_counts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=5), (2, 4)).eval()

    export_all(model, tmp_path / "all", to="aotinductor", size=32)

    index = json.loads((tmp_path / "all/index.json").read_text())
    assert len(index["files"]) == 2
    for count in (2, 4):
        (path,) = (tmp_path / "all").glob(f"frames_{count}.*pt2")
        run = torch._inductor.aoti_load_package(str(path))
        clip = torch.randn(2, 3, count, 32, 32)
        expected = model(clip)
        assert (run(clip) - expected).abs().max() <= 1e-4 * expected.abs().max()
