"""ONNX files against the networks they come from, with ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from random_norms import randomize
from torch import Tensor

import ffn
from ffn.export import ExportError, export_all

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
SHIPPED = "tsm_tiny.motion_f4_8_16"
TINY = ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny"]


def run(path: Path, x: Tensor) -> Tensor:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Within 1e-4 of the largest logit."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.fixture(scope="module")
def shipped() -> ffn.FrameFlexible:
    return ffn.load(SHIPPED)


@pytest.mark.parametrize(
    "name", [TINY[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TINY[1:])]
)
@torch.no_grad()
def test_a_file_computes_the_logits_of_the_sub_network(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomize(ffn.convert(ffn.create_model(name, num_classes=5), (4, 8, 16)))

    report = ffn.export(model, tmp_path / "net.onnx", frames=7, size=(48, 32))

    for batch in (1, 4):
        clip = torch.randn(batch, 3, 7, 48, 32)
        assert_equal(run(report.path, clip), model(clip))
    nodes = Counter(node.op_type for node in onnx.load(report.path).graph.node)
    assert not nodes["ScatterND"]  # slow; the temporal shift was written with it


@torch.no_grad()
def test_any_number_of_frames(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    report = ffn.export(shipped, tmp_path / "net.onnx", frames=8, dynamic_frames=True)
    for frames in (1, 2, 7, 8, 20):
        clip = torch.randn(2, 3, frames, 24, 24)
        assert_equal(run(report.path, clip), shipped(clip, active=8))
    assert report.metadata["input"]["shape"] == ["B", 3, "T", 24, 24]


def test_a_network_whose_trace_fixes_the_frames_is_refused(tmp_path: Path) -> None:
    class Fixed(torch.nn.Module):
        def forward(self, clip: Tensor) -> Tensor:
            return clip.mean((1, 3, 4))[:, :3] * (2 if clip.shape[2] % 2 else 1)

    with pytest.raises(ExportError, match="if B and T may vary; export it for one T"):
        ffn.export(Fixed(), tmp_path / "net.onnx", frames=8, size=16, dynamic_frames=True)
    assert list(tmp_path.iterdir()) == []


def test_the_metadata(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    report = ffn.export(shipped, tmp_path / "net.onnx", frames=6, preprocess=True)

    session = ort.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    inside = session.get_modelmeta().custom_metadata_map
    found = {key: json.loads(value) for key, value in inside.items()}
    record = shipped.record
    assert found["classes"] == list(record.classes)
    assert found["weights"] == {"name": SHIPPED, "sha256": record.sha256}
    assert (found["frames"], found["sub_network"], found["any_frames"]) == (6, 8, False)
    assert (found["licence"], found["ffn"]) == (record.licence, ffn.__version__)
    assert found["preprocessing"]["resize"] == 28
    assert found["preprocessing"]["inside"] is True
    assert found["sampling"]["rule"] == "segment"

    beside = json.loads(Path(f"{report.path}.json").read_text())
    assert {key: beside[key] for key in found} == found
    check = beside["compared_with_network"]
    assert check["largest_difference"] <= 1e-4 * check["largest_output"]
    assert len(check["inputs"]) >= 2


def test_a_file_has_no_trace_of_ffn(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    """Neither paths of this machine nor names of modules; nodes of standard ONNX only."""
    model = onnx.load(ffn.export(shipped, tmp_path / "net.onnx", frames=4).path)
    del model.metadata_props[:]
    content = model.SerializeToString()
    assert str(Path(ffn.__file__).parent).encode() not in content
    assert b"ffn." not in content
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.slow
@torch.no_grad()
def test_a_folder_of_all_counts(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    report = export_all(shipped, tmp_path / "all", dynamic_frames=True)

    index = json.loads((tmp_path / "all" / "index.json").read_text())
    answers = {(f["first"], f["last"]): f["file"] for f in index["files"]}
    for frames in range(1, 21):
        files = [f for (a, b), f in answers.items() if a <= frames and (b is None or frames <= b)]
        assert files == [f"frames_{shipped.select(frames)}.onnx"]
        clip = torch.randn(1, 3, frames, 24, 24)
        assert_equal(run(tmp_path / "all" / files[0], clip), shipped(clip))

    parameters = sum(p.numel() for p in ffn.extract(shipped, 4).parameters())
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "all").iterdir()}
    assert sizes["weights.bin"] < 1.1 * 4 * parameters  # one network, and some private tensors
    assert sum(sizes.values()) == report.size < 0.5 * report.separate


@pytest.mark.slow
def test_a_missing_package_names_the_extra(tmp_path: Path) -> None:
    """In a process that has no onnxruntime, torch.export works and ONNX names the extra."""
    code = (
        "import sys; sys.modules['onnxruntime'] = None; import ffn\n"
        "model = ffn.extract(ffn.load('tsm_tiny.motion_f4_8_16'), 4)\n"
        "try: ffn.export(model, 'net.onnx', frames=4, size=24)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(ffn.__file__).parents[1]), "PATH": ""},
    )
    assert "frame-flexible[onnx]" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
