"""int8 files: error on held-out clips, refusal, and what is not quantized."""

from __future__ import annotations

import json
from collections import Counter
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


def test_convolutions_are_quantized_but_not_the_classifier(tmp_path: Path) -> None:
    """Logits beyond the range of the calibration clips would be cut off."""
    model = ffn.load(SHIPPED)
    held_out = [(clip, 0) for clip in noise(8, seed=1)]
    path = tmp_path / "net.onnx"

    ffn.export(model, path, frames=4, calibration=Calibration(noise(8, seed=0), held_out, 0.2))

    graph = onnx.load(path).graph
    count = Counter(node.op_type for node in graph.node)
    made = {name: node for node in graph.node for name in node.output}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convs) == 14
    assert all(made[c.input[i]].op_type == "DequantizeLinear" for c in convs for i in (0, 1))
    (head,) = [node for node in graph.node if node.op_type == "Gemm"]
    assert head.input[1] not in made  # fp32 weights
    assert count["QuantizeLinear"] > len(convs)
    readers = [node.op_type for node in graph.node if head.output[0] in node.input]
    assert "QuantizeLinear" not in readers  # its logits are not quantized


def test_a_large_error_is_refused(tmp_path: Path) -> None:
    """Calibrated with weak clips, int8 cuts off strong ones."""
    weak = [0.01 * clip for clip in noise(4, seed=0)]
    strong = [(5 * clip, 0) for clip in noise(4, seed=1)]
    with pytest.raises(ExportError, match=r"too much: int8 on 4 held-out clips.*Nothing was"):
        ffn.export(
            ffn.load(SHIPPED),
            tmp_path / "net.onnx",
            frames=4,
            calibration=Calibration(weak, strong),
        )
    with pytest.raises(ValueError, match="int8 needs the format onnx"):
        ffn.export(
            ffn.load(SHIPPED), tmp_path / "net.pt2", frames=4, calibration=Calibration(weak, strong)
        )
    assert list(tmp_path.iterdir()) == []


def test_rare_values_do_not_widen_the_range_of_the_input(tmp_path: Path) -> None:
    """The ranges hold 99.99 % of the values. With the largest, the scale would be 4."""
    clips = noise(8, seed=0)
    clips[5][0, 0, 0, 0, 0] = 1000.0  # one of 55,296 values
    path = tmp_path / "net.onnx"

    calibration = Calibration(clips, [(clip, 0) for clip in noise(8, seed=1)], max_difference=10)
    ffn.export(ffn.load(SHIPPED), path, frames=4, calibration=calibration)

    graph = onnx.load(path).graph
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    scale = next(numpy_helper.to_array(v) for v in graph.initializer if v.name == first.input[1])
    largest = torch.cat(clips).abs().flatten().sort().values[-2].item()
    assert 1.5 * largest / 255 < scale < 2.1 * largest / 255


@pytest.mark.filterwarnings("error:std")
def test_a_single_output(tmp_path: Path) -> None:
    """One class, and one held-out clip: a single value has no standard deviation."""
    torch.manual_seed(0)
    model = ffn.create_model("tsm_tiny", num_classes=1, width=8).eval()
    calibration = Calibration(noise(2, 0), [(noise(1, 1)[0], 0)], max_difference=0.5)
    path = tmp_path / "net.onnx"
    report = ffn.export(model, path, frames=4, size=24, calibration=calibration)
    assert 0 <= report.int8.difference <= 0.5
