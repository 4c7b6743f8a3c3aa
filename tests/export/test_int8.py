"""int8 files: error on held-out clips, refusal, and what is not quantized."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ffn
from ffn.cli import main
from ffn.datasets.synthetic import generate
from ffn.export import Calibration, ExportError

onnx = pytest.importorskip("onnx")
numpy_helper = pytest.importorskip("onnx.numpy_helper")
onnxruntime = pytest.importorskip("onnxruntime")
SHIPPED = "tsm_tiny.motion_f4_8_16"


def noise(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 3, 4, 24, 24, generator=generator) for _ in range(count)]


@pytest.mark.slow
def test_the_command_calibrates_with_a_list(tmp_path: Path, capsys) -> None:
    generate(tmp_path / "motion", train_per_class=4, val_per_class=4)
    videos = tmp_path / "motion/train.csv"
    path = tmp_path / "net.onnx"
    command = ["export", "--weights", SHIPPED, "--frames", "8", "--output", str(path), "--int8"]
    assert main(command) == 2
    assert "--calibration" in capsys.readouterr().err
    for more in ([], ["--preprocess", "--overwrite"]):
        assert main([*command, *more, "--calibration", str(videos)]) == 0
        assert "int8 on 24 held-out clips: top-1" in capsys.readouterr().out

    inside = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert inside["int8"] == json.loads(Path(f"{path}.json").read_text())["int8"]
    assert inside["int8"]["difference"] < 0.1
    assert inside["int8"]["agreement"] > 80
    parameters = sum(p.numel() for p in ffn.extract(ffn.load(SHIPPED), 8).parameters())
    assert path.stat().st_size < 1.6 * parameters  # one byte each, and the graph


@pytest.mark.slow
def test_what_is_quantized_and_with_which_range(tmp_path: Path) -> None:
    """The classifier is not: logits beyond those of the calibration clips would be cut off.

    The ranges hold 99.99 % of the values. With the largest, the scale of the input would be 4.
    """
    clips, held_out = noise(8, seed=0), [(clip, 0) for clip in noise(8, seed=1)]
    clips[5][0, 0, 0, 0, 0] = 1000.0  # one of 55,296 values
    path = tmp_path / "net.onnx"

    calibration = Calibration(clips, held_out, max_difference=10)
    ffn.export(ffn.load(SHIPPED), path, frames=4, calibration=calibration)

    graph = onnx.load(path).graph
    made = {name: node for node in graph.node for name in node.output}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convs) == 14
    assert all(made[c.input[i]].op_type == "DequantizeLinear" for c in convs for i in (0, 1))
    (head,) = [node for node in graph.node if node.op_type == "Gemm"]
    assert head.input[1] not in made  # fp32 weights
    readers = [node.op_type for node in graph.node if head.output[0] in node.input]
    assert "QuantizeLinear" not in readers
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    scale = next(numpy_helper.to_array(v) for v in graph.initializer if v.name == first.input[1])
    largest = torch.cat(clips).abs().flatten().sort().values[-2].item()
    assert 1.5 * largest / 255 < scale < 2.1 * largest / 255


@pytest.mark.slow
def test_a_large_error_is_refused(tmp_path: Path) -> None:
    """Calibrated with weak clips, int8 cuts off strong ones."""
    weak = [0.01 * clip for clip in noise(4, seed=0)]
    strong = [(5 * clip, 0) for clip in noise(4, seed=1)]
    network, options = ffn.load(SHIPPED), {"frames": 4, "calibration": Calibration(weak, strong)}
    with pytest.raises(ExportError, match=r"too much: int8 on 4 held-out clips.*Nothing was"):
        ffn.export(network, tmp_path / "net.onnx", **options)
    with pytest.raises(ValueError, match="int8 needs the format onnx"):
        ffn.export(network, tmp_path / "net.pt2", **options)
    assert list(tmp_path.iterdir()) == []
