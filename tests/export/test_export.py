"""Exported files against the networks they come from; formats of other packages."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from export_helpers import assert_close, open_file, randomize
from torch import nn

import ffn
from ffn.cli import main
from ffn.devices import has_compiler
from ffn.export import ExportError, export_all, formats, register_format

SHIPPED = "tsm_tiny.motion_f4_8_16"
HAS_ONNX = importlib.util.find_spec("onnxscript") is not None
ONNX = pytest.param(
    "onnx", marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_ONNX, reason="needs onnxscript")]
)
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("tea_tiny", "slowfast_tiny", "uniformer_tiny", "vit_tiny")
]


@pytest.fixture
def flexible() -> ffn.FrameFlexible:
    """A network that torch.export traces in a moment, in train mode."""
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()]
    plain = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 3))
    return randomize(ffn.convert(plain, (2, 4), alter="none")).train()


@pytest.fixture
def toy_format():
    """Registers a format that takes its logits from a function; forgets it afterwards."""

    def add(suffix, logits):
        @register_format(suffix)
        def toy(network, clip, file):
            file.write(b"toy")
            return lambda clip: logits(network, clip)

    before = set(formats._formats)
    yield add
    for suffix in set(formats._formats) - before:
        del formats._formats[suffix]


@pytest.mark.parametrize("suffix", ["pt2", ONNX])
@pytest.mark.parametrize("name", ["tsm_tiny", *SLOW])
@torch.no_grad()
def test_a_file_computes_the_logits_of_the_sub_network(
    name: str, suffix: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = randomize(ffn.convert(ffn.create_model(name, num_classes=5), (2, 4)))

    report = ffn.export(model, tmp_path / "new" / f"net.{suffix}", frames=3, size=(48, 32))

    for batch in (1, 2, 5):
        clip = torch.randn(batch, 3, 3, 48, 32)
        expected = ffn.extract(model, 4)(clip)  # of 2 and 4, equally near, the larger
        assert_close(open_file(report.path)(clip), expected)
    assert report.metadata["sub_network"] == 4
    assert report.difference <= 1e-4 * report.largest
    assert "clips (B, 3, 3, 48, 32), sub-network of 4 frames; largest difference" in str(report)
    assert suffix != "onnx" or b"ScatterND" not in report.path.read_bytes()  # it is slow


def test_a_file_has_no_example_clips(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    """Two of 8 frames of 112 px would have 2.4 MB."""
    path = tmp_path / "net.pt2"
    ffn.export(flexible, path, frames=8, size=112)
    weights = sum(p.nbytes for p in ffn.fuse(flexible, 8).parameters())
    assert path.stat().st_size < weights + 1_000_000
    loaded = torch.export.load(path).module()
    for shape in ((2, 3, 8, 111, 112), (2, 3, 7, 112, 112)):
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
            loaded(torch.randn(shape))


@torch.no_grad()
def test_a_plain_network_of_any_kind(tmp_path: Path) -> None:
    layers = nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2)
    network = nn.Sequential(*layers).double()
    report = ffn.export(network, tmp_path / "mean.pt2", frames=4, size=6)
    clip = torch.randn(7, 3, 4, 6, 6, dtype=torch.float64)
    assert torch.allclose(torch.export.load(report.path).module()(clip), network(clip))
    assert "sub_network" not in report.metadata


def test_an_existing_file_is_kept_unless_told(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.pt2 exists"):
        ffn.export(flexible, path, frames=4, size=32)
    assert path.read_bytes() == b"mine"
    ffn.export(flexible, path, frames=4, size=32, overwrite=True)
    assert path.read_bytes() != b"mine"


def of_two_clips(network: nn.Module, clip: torch.Tensor) -> torch.Tensor:
    assert clip.shape[0] == 2, "only a batch of 2"
    return network(clip)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda network, clip: network(clip) * 1.01, "differs from the network"),
        (lambda network, clip: network(clip[:1]).expand(len(clip), -1), "differs from the network"),
        (lambda network, clip: network(clip) / 0, "differs from the network"),
        (of_two_clips, r"fails on a clip \(1, 3, .*only a batch of 2"),
    ],
)
def test_wrong_logits_are_an_error_and_nothing_is_written(
    logits, message: str, flexible: ffn.FrameFlexible, tmp_path: Path, toy_format
) -> None:
    toy_format("wrong", logits)
    path = tmp_path / "a.wrong"
    path.write_bytes(b"mine")
    with pytest.raises(ExportError, match=rf"(?s){message}.*Nothing was written"):
        ffn.export(flexible, path, frames=4, size=32, overwrite=True)
    assert path.read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a.wrong"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("tsm_tiny", 1),
        ("tea_tiny", 1),
        ("slowfast_tiny", 3),
        ("uniformer_tiny", 3),
        ("vit_tiny", 3),
    ],
)
@pytest.mark.parametrize("suffix", ["pt2", ONNX])
@torch.no_grad()
def test_clips_of_any_length(name: str, least: int, suffix: str, tmp_path: Path) -> None:
    if name == "uniformer_tiny" and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("torch 2.6 cannot trace it")
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model(name, num_classes=5), (4, 8)).eval()
    path = tmp_path / f"net.{suffix}"
    report = ffn.export(model, path, frames=8, size=32, dynamic_frames=True)
    assert report.metadata["least_frames"] == least
    assert report.metadata["input"]["shape"] == ["B", 3, "T", 32, 32]
    for frames in (least, 6, 8, 19):
        clip = torch.randn(2, 3, frames, 32, 32)
        assert_close(open_file(path)(clip), model(clip, active=8))
    if least > 1 and suffix == "pt2":
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|to be >= "):
            open_file(path)(torch.randn(2, 3, least - 1, 32, 32))


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@torch.no_grad()
def test_an_aotinductor_package(tmp_path: Path) -> None:
    model = ffn.load(SHIPPED)
    path = tmp_path / "net.aoti.pt2"
    ffn.export(model, path, frames=8, dynamic_frames=True)
    run = torch._inductor.aoti_load_package(str(path))
    for batch, frames in ((1, 8), (5, 3)):
        clip = torch.randn(batch, 3, frames, 24, 24)
        assert_close(run(clip), model(clip, active=8))
    assert json.loads(run.get_metadata()["classes"]) == list(model.record.classes)


@torch.no_grad()
def test_a_fused_network_knows_its_frames(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    for options, frames in (({}, 2), ({"frames": 8, "overwrite": True}, 8)):
        report = ffn.export(ffn.fuse(flexible, 2), tmp_path / "a.pt2", size=32, **options)
        assert report.metadata["input"]["shape"] == ["B", 3, frames, 32, 32]
        described = json.loads((tmp_path / "a.pt2.json").read_text())
        assert (described["frames"], described["sub_network"]) == (frames, 2)
    extra = {"metadata.json": ""}
    torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra["metadata.json"]) == json.loads(json.dumps(report.metadata))
    with pytest.raises(ValueError, match="frames is None"):
        ffn.export(flexible, tmp_path / "b.pt2", size=32)


def test_a_record_of_other_classes_is_refused(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    """As after `reset_classifier` of a network from `ffn.load`."""
    model = ffn.load(SHIPPED)
    model.reset_classifier(3)
    path, options = tmp_path / "net.pt2", {"frames": 4, "size": 24}
    with pytest.raises(ValueError, match=r"has 3 outputs, and its record 12 classes.*record="):
        ffn.export(model, path, **options)
    assert not list(tmp_path.iterdir())
    metadata = ffn.export(model, path, **options, record={"classes": ["a", "b", "c"]}).metadata
    assert metadata["classes"] == ["a", "b", "c"]
    assert "weights" not in metadata


@torch.no_grad()
def test_a_network_in_bf16(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    network = flexible.eval()
    half = ffn.fuse(network, 4).bfloat16()

    report = ffn.export(half, tmp_path / "net.pt2", size=24)

    assert {report.metadata[key]["dtype"] for key in ("input", "output")} == {"bfloat16"}
    clip = torch.randn(2, 3, 4, 24, 24)
    found = torch.export.load(report.path).module()(clip.bfloat16())
    assert found.dtype == torch.bfloat16
    expected = network(clip)
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()
    pytest.importorskip("onnxscript")
    with pytest.raises(ExportError, match=r"the network is in torch\.bfloat16; ONNX files are"):
        ffn.export(half, tmp_path / "net.onnx", size=24)


def test_what_cannot_be_exported(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    for name, given, value in (
        ("a.onx", {}, "did you mean onnx"),
        ("a.pt2", {"frames": 0}, "frames is 0"),
        ("a.pt2", {"size": (32, 0)}, r"size \(32, 0\)"),
    ):
        with pytest.raises(ValueError, match=value):
            ffn.export(flexible, tmp_path / name, **{"frames": 4, "size": 32} | given)
    assert list(tmp_path.iterdir()) == []


@torch.no_grad()
def test_a_folder_of_all_counts(flexible: ffn.FrameFlexible, tmp_path: Path, toy_format) -> None:
    """Only ONNX files share weights; others are of fused networks."""
    toy_format("toy", lambda network, clip: network(clip))
    folder = tmp_path / "all"
    reports = export_all(flexible, folder, to="toy", size=24)
    assert [report.path.name for report in reports] == ["frames_2.toy", "frames_4.toy"]
    with pytest.raises(FileExistsError, match=r"frames_2\.toy exists"):
        export_all(flexible, folder, to="toy", size=24)
    (folder / "thesis.txt").write_text("mine")
    for _ in range(2):
        export_all(flexible, folder, to="toy", size=24, overwrite=True)
    index = json.loads((folder / "index.json").read_text())
    assert [(f["first"], f["last"], f["file"]) for f in index["files"]] == [
        (2, 2, "frames_2.toy"),
        (4, 4, "frames_4.toy"),
    ]
    assert (folder / "thesis.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="Sequential"):
        export_all(ffn.extract(flexible, 4), tmp_path / "new")


@torch.no_grad()
def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["export", "--weights", SHIPPED, "--frames", "8", "--to", "torch", "--size", "32"]

    assert main([*command, "--probabilities"]) == 0

    path = f"{SHIPPED}.frames_8.pt2"
    assert capsys.readouterr().out.startswith(f"{path}: ")
    clip = torch.randn(2, 3, 8, 32, 32)
    found = torch.export.load(path).module()(clip)
    torch.testing.assert_close(found, ffn.load(SHIPPED)(clip).softmax(1), rtol=1e-4, atol=1e-5)
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
    onnx = ["--frames", "4", "--to", "onnx", "--output", "net.pt2"]
    for more in (["--to", "onnx"], ["--frames", "4"], [*onnx[:2], "--output", "net.program"], onnx):
        assert main(["export", "--weights", SHIPPED, *more]) == 2
