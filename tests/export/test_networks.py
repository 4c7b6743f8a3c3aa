"""One fused network per sub-network: which runs, in which precision, for several threads."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import multiprocessing as mp

import ffn
from ffn.devices import describe_device
from ffn.export import ExportError, Networks, can_pack, networks
from ffn.export.fuse import DifferenceError


@pytest.fixture(scope="module")
def model() -> ffn.FrameFlexible:
    torch.manual_seed(0)
    flexible = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 8), interpolate=True)
    with torch.no_grad():
        for parameter in flexible.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return flexible.eval()


def make(model, folder, **options) -> Networks:
    return Networks(
        model, **{"precision": "fp32", "fused": True, "compiled": False, "cache": folder} | options
    )


@torch.inference_mode()
def test_every_count_has_its_own_fused_network(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(networks, "KEPT", 4)
    monkeypatch.setattr(networks, "KEPT_BYTES", 0)
    run = make(model, tmp_path)
    for frames in (*range(1, 13), 1):  # more than are kept in memory
        clip = torch.randn(2, 3, frames, 32, 32)
        torch.testing.assert_close(run(clip), model(clip), rtol=1e-4, atol=1e-5)
        assert run.select(frames) == model.select(frames)
    assert len(run._networks) == 4
    assert str(run) == "fused, fp32"
    assert list(tmp_path.iterdir()) == []


@torch.inference_mode()
def test_maps_of_one_column_in_bf16() -> None:
    """The last map of a uniformer_tiny for 40 x 24 px is 2 x 1; oneDNN is wrong for 4 clips."""
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model("uniformer_tiny", num_classes=3), (2, 8)).eval()
    run, clips = Networks(model, precision="bf16"), torch.randn(8, 3, 8, 40, 24)
    for number in (1, 4, 8):
        found, expected = run(clips[:number]), model(clips[:number])
        assert (found - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.slow
@torch.inference_mode()
def test_counts_in_turn_build_each_network_once(model, tmp_path, monkeypatch, caplog) -> None:
    """As a test at many counts does, batch after batch."""
    wide = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 20), interpolate=True)
    built, fuse = [], networks.fuse
    monkeypatch.setattr(networks, "fuse", lambda *a, **k: built.append(a[1]) or fuse(*a, **k))
    run = make(wide.eval(), tmp_path)
    clips = [torch.randn(1, 3, frames, 16, 16) for frames in range(2, 21)]
    for clip in 2 * clips:
        run(clip)
    assert built == [*range(2, 21)]

    assert not caplog.records

    monkeypatch.setattr(networks, "KEPT_BYTES", 0)
    run = make(wide, tmp_path)
    built.clear()
    for clip in 2 * clips[:10]:
        run(clip)
    assert built == 2 * [*range(2, 12)]  # 8 are kept
    (record,) = caplog.records
    assert "more than 8 sub-networks are in use" in record.getMessage()


@torch.inference_mode()
def test_half_precision_is_close_and_not_equal(model, tmp_path) -> None:
    clip = torch.randn(1, 3, 8, 32, 32)
    expected = model(clip)
    for fused in (True, False):
        logits = make(model, tmp_path, precision="bf16", fused=fused)(clip)
        assert logits.dtype == torch.float32
        difference = (logits - expected).abs().max() / expected.abs().max()
        assert 1e-5 < difference < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 0.05)])
@pytest.mark.parametrize("fused", [True, False])
@torch.inference_mode()
def test_compiled(model, tmp_path, precision: str, error: float, fused: bool) -> None:
    pytest.importorskip("torch._inductor")
    run = make(model, tmp_path, precision=precision, fused=fused, compiled=True)
    for frames in (2, 8, 5):
        clip = torch.randn(1, 3, frames, 32, 32)
        expected = model(clip)
        assert (run(clip) - expected).abs().max() <= error * expected.abs().max()
    assert str(run) == ", ".join(["fused"] * fused + [precision, "compiled"])


@pytest.mark.slow
@torch.inference_mode()
def test_a_spawned_process_has_the_same_outputs(model) -> None:
    """Networks are pickled for a process that starts anew, without the memory of this one."""
    clip = torch.randn(2, 3, 8, 32, 32)
    for network in (model, ffn.extract(model, 8), ffn.fuse(model, 8)):
        with mp.get_context("spawn").Pool(1) as pool:
            found = pool.apply(outputs, (network, clip))
        torch.testing.assert_close(found, network(clip), rtol=1e-5, atol=1e-6)


def outputs(network: torch.nn.Module, clip: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return network(clip)


@pytest.mark.parametrize("faster", [True, False])
@torch.inference_mode()
def test_auto_measures_once_and_keeps_the_result(model, tmp_path, monkeypatch, faster) -> None:
    calls = []
    monkeypatch.setattr(networks, "has_bf16", lambda: True)
    monkeypatch.setattr(networks, "_is_faster_in_bf16", lambda *_: calls.append(1) or faster)
    chosen = "bf16" if faster else "fp32"
    for _ in range(2):
        run = make(model, tmp_path / "home", precision="auto")
        assert str(run) == "fused, auto"
        run(torch.randn(1, 3, 8, 32, 32))
        run(torch.randn(1, 3, 2, 32, 32))
        assert str(run) == f"fused, {chosen}"
    assert len(calls) == 1
    path = tmp_path / "home" / "precision.json"
    (key,) = known = json.loads(path.read_text())
    assert "1x3x8x32x32" in key
    assert describe_device(torch.device("cpu")) in key  # one folder may serve several machines
    assert known[key] == chosen

    monkeypatch.setattr(networks, "__version__", "9.0")  # its layers may be faster in bf16
    make(model, tmp_path / "home", precision="auto")(torch.randn(1, 3, 8, 32, 32))
    assert len(calls) == 2

    path.write_text("damaged")
    make(model, tmp_path / "home", precision="auto")(torch.randn(1, 3, 8, 32, 32))
    assert len(calls) == 3


@torch.inference_mode()
def test_a_processor_without_fast_bf16(model, tmp_path, monkeypatch, caplog) -> None:
    """fp32 without a measurement, whose passes in bf16 would take minutes in large networks."""
    monkeypatch.setattr(networks, "has_bf16", lambda: False)
    run = make(model, tmp_path, precision="auto")
    run(torch.randn(1, 3, 8, 32, 32))
    assert str(run) == "fused, fp32"
    assert not (tmp_path / "precision.json").exists()
    assert not caplog.records

    run = make(model, tmp_path, precision="bf16")
    for frames in (8, 2):
        run(torch.randn(1, 3, frames, 32, 32))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "no fast bf16 operators for this processor" in warning


@torch.inference_mode()
def test_the_measurement_compares_both(model) -> None:
    """The slower of two networks never wins: bf16 against fp32 that waits, and the reverse."""

    class Waits(torch.nn.Module):
        def __init__(self, dtype) -> None:
            super().__init__()
            self.dtype = dtype

        def forward(self, clip):
            return torch.linalg.svd(torch.rand(150, 150)) if clip.dtype == self.dtype else clip

    clip = torch.zeros(1, 3, 2, 4, 4)
    assert networks._is_faster_in_bf16(Waits(torch.float32), None, clip)
    assert not networks._is_faster_in_bf16(Waits(torch.bfloat16), None, clip)


def test_threads_build_one_network_per_count(model, tmp_path, monkeypatch) -> None:
    built = []
    fuse = networks.fuse
    monkeypatch.setattr(networks, "fuse", lambda *a, **k: built.append(a[1]) or fuse(*a, **k))
    run = make(model, tmp_path)
    clips = [torch.randn(1, 3, 1 + i % 3, 32, 32) for i in range(24)]
    with torch.inference_mode():
        expected = [model(clip) for clip in clips]

    def answer(clip):
        with torch.inference_mode():
            return run(clip)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(answer, clips))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert sorted(built) == [1, 3]  # 1 and 2 frames have one sub-network, 3 is interpolated


@pytest.mark.skipif(not can_pack(torch.float32), reason="needs oneDNN's operators")
@pytest.mark.parametrize("fault", ["other outputs", "NaN", "an error"])
@torch.inference_mode()
def test_a_packed_network_with_a_fault_does_not_run(
    model, tmp_path, monkeypatch, caplog, fault: str
) -> None:
    class Wrong(torch.nn.Module):
        def __init__(self, network) -> None:
            super().__init__()
            self.network = network

        def forward(self, clip):
            if fault == "an error":
                raise AttributeError("no attribute of that name\nand more")
            return self.network(clip) * (1.001 if fault == "other outputs" else torch.nan)

    monkeypatch.setattr(networks, "pack", Wrong)
    run = make(model, tmp_path, precision="auto")
    for frames in (2, 8):
        clip = torch.randn(1, 3, frames, 32, 32)
        error = (run(clip) - model(clip)).abs().max() / model(clip).abs().max()
        assert error < (1e-4 if run.precision == "fp32" else 0.05)
    assert "packed" not in run.describe(torch.device("cpu"))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "FrameFlexible cannot be packed (" in warning
    expected = {"other outputs": "differs by 1.0e-03", "NaN": "differs by nan"}
    assert expected.get(fault, "(AttributeError: no attribute of that name)") in warning


@pytest.mark.parametrize("counts", [{2}, {2, 8}])
@torch.inference_mode()
def test_sub_networks_that_cannot_be_fused(model, tmp_path, monkeypatch, caplog, counts) -> None:
    """As those of uniformer_s on CUDA (torch 2.11)."""
    fuse = networks.fuse

    def fail_for_some(network, frames, **more):
        if model.select(frames) in counts:
            raise DifferenceError("the fused FrameFlexible differs by up to 1")
        return fuse(network, frames, **more)

    monkeypatch.setattr(networks, "fuse", fail_for_some)
    run = make(model, tmp_path, precision="auto")
    for frames in (1, 2, 8, 9, 1, 8):
        clip = torch.randn(2, 3, frames, 32, 32)
        expected = model(clip)
        if model.select(frames) in counts:
            assert torch.equal(run(clip), expected)
        else:
            torch.testing.assert_close(run(clip), expected, rtol=1e-4, atol=1e-5)
    assert run.precision == "fp32"
    assert len(caplog.records) == len(counts)
    assert "for 1 frames, the network runs as trained, which is slower: the fused" in caplog.text


class OneLength(torch.nn.Module):
    """Another norm for 6 frames, or a number of frames that the parent sets, as in some TSMs."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.case, self.frames = case, 0
        self.conv, self.head = torch.nn.Conv3d(3, 4, 3, padding=1), torch.nn.Linear(4, 5)
        self.usual, self.other = torch.nn.BatchNorm3d(4), torch.nn.BatchNorm3d(4)

    def forward(self, clip):
        self.frames = clip.shape[2]
        if self.frames < 3:
            raise ValueError("at least 3 frames")
        norm = self.other if self.case == "branch" and self.frames == 6 else self.usual
        x = self.head(norm(self.conv(clip)).relu().mean((2, 3, 4)))
        return x * self.frames if self.case == "attribute" else x


@pytest.mark.parametrize("case", ["branch", "attribute"])
def test_networks_that_depend_on_the_number_of_frames(case: str, caplog) -> None:
    """What a fold or a trace of one length cannot see is found with the first clip of another."""
    torch.manual_seed(0)
    model = ffn.convert(OneLength(case), {8: (4, 11), 16: (12, 20)}, alter="none").eval()
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm3d):
            torch.nn.init.uniform_(norm.running_mean, -1, 1)
    run = Networks(model, precision="fp32")
    with torch.inference_mode():
        for frames in (8, 6, 9, 16, 6):
            clip = torch.randn(2, 3, frames, 8, 8)
            torch.testing.assert_close(run(clip), model(clip), rtol=1e-4, atol=1e-5)
    assert len(caplog.records) == len({record.getMessage() for record in caplog.records})
    if case == "branch":
        assert (
            "for 6 frames, the fused, fp32 FrameFlexible differs from the network as trained"
            in caplog.text
        )


def test_clips_with_another_order_of_dimensions() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(0, 1), torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)
    )

    class Frames(torch.nn.Module):  # (B, T, C, H, W)
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, clip):
            return self.net(clip).mean((2, 3)).unflatten(0, clip.shape[:2]).mean(1)

    model = ffn.convert(Frames(), (4, 16), alter="none", frame_dim=1).eval()
    for number, norm in enumerate(m for m in model.modules() if hasattr(m, "running_mean")):
        torch.nn.init.constant_(norm.running_mean, float(number))
    with pytest.raises(ExportError, match="frames in dimension 1"):
        ffn.export(model, "net.pt2", frames=4)
    run = Networks(model, precision="fp32")
    with torch.no_grad():
        for frames in (3, 16):
            clip = torch.randn(1, frames, 3, 8, 8)
            torch.testing.assert_close(run(clip), model(clip), rtol=1e-4, atol=1e-5)


def test_an_unknown_precision_is_an_error(model, tmp_path) -> None:
    with pytest.raises(ValueError, match=r'precision is "int4"; allowed: auto, fp32, bf16, fp16'):
        make(model, tmp_path, precision="int4")
