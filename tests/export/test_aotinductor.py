"""AOTInductor packages against the networks they come from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ffn
from ffn.core.private import PrivateModules
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
@pytest.mark.parametrize("name", ["tea_tiny", "slowfast_tiny", "uniformer_tiny"])
@torch.no_grad()
def test_packages_of_other_families(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model(name, num_classes=5), (4, 8)).eval()
    for private in model.modules():  # the counts differ
        if isinstance(private, PrivateModules):
            for parameter in private.parameters():
                parameter.add_(0.1 * torch.rand_like(parameter))
    path = tmp_path / "net.aoti.pt2"

    ffn.export(model, path, frames=4, size=32)

    run = torch._inductor.aoti_load_package(str(path))
    for batch in (1, 3):
        clip = torch.randn(batch, 3, 4, 32, 32)
        expected = model(clip, active=4)
        assert (run(clip) - expected).abs().max() <= 1e-4 * expected.abs().max()
        assert (run(clip) - model(clip, active=8)).abs().max() > 1e-3 * expected.abs().max()


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


@pytest.mark.slow
def test_a_missing_compiler(tmp_path: Path) -> None:
    code = (
        "import ffn\n"
        f"try: ffn.export(ffn.load({SHIPPED!r}), 'net.aoti.pt2', frames=4, to='aotinductor')\n"
        "except RuntimeError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(ffn.__file__).parents[1]), "PATH": "", "CXX": "no-such-g++"},
    )
    assert "ExportError no C++ compiler for torch.compile" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
