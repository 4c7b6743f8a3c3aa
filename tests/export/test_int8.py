"""int8 files: error on held-out clips, refusal, and what is not quantized."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import ffn
from ffn.cli.calibration import read_calibration
from ffn.cli.export import main
from ffn.data import Preprocessing, pack, read_annotations
from ffn.datasets.synthetic import generate
from ffn.export import Calibration, ExportError

onnx = pytest.importorskip("onnx")
numpy_helper = pytest.importorskip("onnx.numpy_helper")
onnxruntime = pytest.importorskip("onnxruntime")
SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.fixture(scope="module")
def motion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("motion")
    generate(folder, train_per_class=4, val_per_class=4)
    return folder


def noise(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 3, 4, 24, 24, generator=generator) for _ in range(count)]


@pytest.mark.slow
def test_the_command_calibrates_with_training_clips(motion: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "net.onnx"
    command = ["--weights", SHIPPED, "--frames", "8", "--output", str(path), "--int8"]
    config = Path(__file__).parents[2] / "configs/quickstart/motion_flexible.yaml"

    assert main([*command, "--calibration", str(config), f"data.root={motion}"]) == 0

    assert "int8 on 48 held-out clips: top-1" in capsys.readouterr().out
    inside = {p.key: json.loads(p.value) for p in onnx.load(path).metadata_props}
    assert inside["int8"] == json.loads(Path(f"{path}.json").read_text())["int8"]
    assert inside["int8"]["difference"] < 0.1
    assert inside["int8"]["agreement"] > 90
    assert inside["sub_network"] == 8
    parameters = sum(p.numel() for p in ffn.extract(ffn.load(SHIPPED), 8).parameters())
    assert path.stat().st_size < 1.5 * parameters  # one byte each, and the graph

    assert main([*command, "--overwrite"]) == 2
    assert "--int8 and --calibration belong together" in capsys.readouterr().err
    lists = [str(motion / "train.csv"), str(motion / "val.csv")]
    frames = ["--preprocess", "--overwrite", "--calibration-clips", "32"]
    assert main([*command, *frames, "--calibration", lists[0]]) == 0
    assert "int8 on 16 held-out clips" in capsys.readouterr().out  # the rest of the list
    assert main([*command, *frames, "--held-out-clips", "9", "--calibration", *lists]) == 0
    assert "int8 on 9 held-out clips" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["config", "list", "store"])
def test_clips_are_read_as_in_training(motion: Path, tmp_path: Path, source: str) -> None:
    """From folders of frames whose names have a pattern of their own, or from a store."""
    shipped = ffn.load(SHIPPED).record
    settings = Preprocessing.from_dict(shipped.preprocessing)
    root, pattern, config = tmp_path / "frames", None, "quickstart/motion_plain_16"
    options = [f"data.root={root}", "data.train=train.csv", "data.val=train.csv"]
    if source == "store":
        videos = read_annotations(motion / "train.csv", root=motion, classes=shipped.classes)[0]
        pack(videos, tmp_path / "store", short_side=28, root=motion)
        options = [f"data.root={motion}", "data.format=store", f"data.store={tmp_path / 'store'}"]
        sources = [config, *options]
    else:
        for number in range(4):
            (root / f"v{number}").mkdir(parents=True)
            for n in range(8):
                Image.new("RGB", (32, 32), (60 * number, n, 0)).save(
                    root / f"v{number}/img_{n:05d}.png"
                )
        rows = [f"v{number},{shipped.classes[number]}\n" for number in range(4)]
        (root / "train.csv").write_text("path,label\n" + "".join(rows))
        sources = [config, *options, "data.frame_pattern=img_{:05d}.png"]
    if source == "list":
        sources, pattern = [str(root / "train.csv")], "img_{:05d}.png"

    found = read_calibration(
        sources,
        classes=shipped.classes,
        preprocessing=settings,
        pattern=pattern,
        frames=4,
        as_frames=True,
        clips=2,
        held_out=1,
        seed=0,
    )

    clips = list(found.clips)
    assert len(clips) == 2
    assert {clip.shape[:2] for clip in clips} == {(1, 4)}
    assert {clip.shape[2] for clip in clips} == {28 if source == "store" else 32}
    if source != "store":
        assert {int(clip[0, 0, 0, 0, 0]) % 60 for clip in clips} == {0}


def test_convolutions_are_quantized_but_not_the_classifier(tmp_path: Path) -> None:
    """Logits beyond the range of the calibration clips would be cut off."""
    model = ffn.load(SHIPPED)
    held_out = [(clip, 0) for clip in noise(8, seed=1)]
    path = tmp_path / "net.onnx"

    ffn.export(model, path, frames=4, calibration=Calibration(noise(8, seed=0), held_out))

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


def test_the_first_layers_stay_in_fp32_if_int8_changes_the_outputs(tmp_path: Path) -> None:
    """Channels of very different ranges, as after depthwise convolutions, share one range."""
    clips, held_out = noise(8, seed=0), [(clip, 0) for clip in noise(8, seed=1)]
    network = ffn.extract(ffn.load(SHIPPED), 4)
    expected = network.eval()(clips[0])
    scale = torch.logspace(-3, 0, 8)
    with torch.no_grad():  # the same function: ReLU(s x) = s ReLU(x)
        network.net.conv1[1].weight *= scale
        network.net.conv1[1].bias *= scale
        network.net.conv1[3].weight /= scale[:, None, None]
        torch.testing.assert_close(network(clips[0]), expected, rtol=1e-3, atol=1e-3)

    path = tmp_path / "net.onnx"
    calibration = Calibration(clips, held_out)
    report = ffn.export(network, path, frames=4, size=24, calibration=calibration)

    assert report.int8.fp32_layers == 4
    assert report.int8.difference < 0.1
    assert "the first 4 layers are in fp32" in str(report)
    graph = onnx.load(path).graph
    made = {name: node for node in graph.node for name in node.output}
    convs = [node for node in graph.node if node.op_type == "Conv"]
    assert [conv.input[1] in made for conv in convs] == [False] * 4 + [True] * 10


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


def test_clips_are_a_sequence() -> None:
    with pytest.raises(TypeError, match="clips is a generator; expected a sequence"):
        Calibration((clip for clip in noise(1, seed=0)), [])
    with pytest.raises(TypeError, match="held_out is a generator; expected a list"):
        Calibration(noise(1, seed=0), ((clip, 0) for clip in noise(1, seed=0)))


def test_clips_to_calibrate_with_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no calibration clip to set the int8 ranges"):
        ffn.export(
            ffn.load(SHIPPED), tmp_path / "net.onnx", frames=4, calibration=Calibration([], [])
        )
