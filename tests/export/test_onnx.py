"""ONNX files against the networks they come from, with ONNX Runtime."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from export_helpers import assert_close, open_file, randomize
from torch import Tensor

import ffn
from ffn.export import ExportError, export_all, formats

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.fixture(scope="module")
def shipped() -> ffn.FrameFlexible:
    return ffn.load(SHIPPED)


@torch.no_grad()
def test_a_file_has_the_logits_and_metadata_of_the_sub_network(
    shipped: ffn.FrameFlexible, tmp_path: Path
) -> None:
    report = ffn.export(shipped, tmp_path / "net.onnx", frames=6)

    for batch in (1, 4):
        clip = torch.randn(batch, 3, 6, 24, 24)
        assert_close(open_file(report.path)(clip), shipped(clip))
    model, record = onnx.load(report.path), shipped.record
    found = {each.key: json.loads(each.value) for each in model.metadata_props}
    assert found["classes"] == list(record.classes)
    assert found["weights"] == {"name": SHIPPED, "sha256": record.sha256}
    assert (found["frames"], found["sub_network"], found["any_frames"]) == (6, 8, False)
    assert (found["licence"], found["ffn"]) == (record.licence, ffn.__version__)
    assert (found["preprocessing"]["resize"], found["sampling"]["rule"]) == (28, "segment")
    beside = json.loads(Path(f"{report.path}.json").read_text())
    assert {key: beside[key] for key in found} == found
    check = beside["compared_with_network"]
    assert check["largest_difference"] <= 1e-4 * check["largest_output"]

    del model.metadata_props[:]  # neither paths of this machine nor names of modules are left
    content = model.SerializeToString()
    assert str(Path(ffn.__file__).parent).encode() not in content
    assert b"ffn." not in content
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.slow
def test_names_of_the_axes(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    options = {"frames": 8, "preprocess": True, "dynamic_frames": True}
    graph = onnx.load(ffn.export(shipped, tmp_path / "net.onnx", **options).path).graph
    found = [
        [size.dim_param or size.dim_value for size in end[0].type.tensor_type.shape.dim]
        for end in (graph.input, graph.output)
    ]
    assert found == [["batch", "frames", "height", "width", 3], ["batch", 12]]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(None, 3, 4), (2, 4, 3)])
def test_adaptive_pools(size: tuple[int | None, ...], tmp_path: Path) -> None:
    """Their slices overlap; the export compares the file with the network at several lengths."""
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool3d(size), torch.nn.Flatten(3))
    export = {"frames": 5, "size": (8, 7), "dynamic_frames": True}
    report = ffn.export(network, tmp_path / "net.onnx", **export)
    clip = torch.randn(2, 3, 7, 8, 7)
    assert_close(open_file(report.path)(clip), network(clip))


def test_an_operator_that_onnx_lacks(tmp_path: Path) -> None:
    class Lacking(torch.nn.Module):
        def forward(self, clip: Tensor) -> Tensor:
            return torch.linalg.svdvals(clip.mean((3, 4)))

    with pytest.raises(ExportError, match=r"^torch.onnx cannot express .*svd[^\n]*$"):
        ffn.export(Lacking(), tmp_path / "net.onnx", frames=4, size=8)


def test_a_network_whose_trace_fixes_the_frames_is_refused(tmp_path: Path) -> None:
    class Fixed(torch.nn.Module):
        def forward(self, clip: Tensor) -> Tensor:
            return clip.mean((1, 3, 4))[:, :3] * (2 if clip.shape[2] % 2 else 1)

    with pytest.raises(ExportError, match=r"differs from the network.*\(1, 3, 9, 16, 16\)"):
        ffn.export(Fixed(), tmp_path / "net.onnx", frames=8, size=16, dynamic_frames=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@torch.no_grad()
def test_a_folder_of_all_counts(shipped: ffn.FrameFlexible, tmp_path: Path) -> None:
    export_all(shipped, tmp_path / "all", dynamic_frames=True)

    index = json.loads((tmp_path / "all" / "index.json").read_text())
    answers = {(f["first"], f["last"]): f["file"] for f in index["files"]}
    for frames in range(1, 21):
        files = [f for (a, b), f in answers.items() if a <= frames and (b is None or frames <= b)]
        assert files == [f"frames_{shipped.select(frames)}.onnx"]
        clip = torch.randn(1, 3, frames, 24, 24)
        assert_close(open_file(tmp_path / "all" / files[0])(clip), shipped(clip))

    parameters = sum(p.numel() for p in ffn.extract(shipped, 4).parameters())
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "all").iterdir()}
    assert sum(sizes.values()) < 1.5 * 4 * parameters  # one network, private tensors, three graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slowfast_tiny", "uniformer_tiny", "vit_tiny"])
@torch.no_grad()
def test_norms_that_a_folder_keeps(name: str, tmp_path: Path) -> None:
    """Runtimes fold them; the weights of the sub-networks are equal in the files."""
    torch.manual_seed(0)
    model = randomize(ffn.convert(ffn.create_model(name, num_classes=5), (4, 8)))
    for report in export_all(model, tmp_path / "all", size=32):
        clip = torch.randn(2, 3, report.metadata["frames"], 32, 32)
        assert_close(open_file(report.path)(clip), model(clip))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"frame-flexible\[onnx\]"):
        formats.require("onnxruntime")
