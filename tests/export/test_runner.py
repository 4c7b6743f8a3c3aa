"""One network per frame count, by every runtime and for several threads."""

from __future__ import annotations

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from export_helpers import ByLength, assert_close, randomize
from torch import Tensor, nn

import ffn
from ffn.devices import has_compiler
from ffn.export import FuseError, InferenceRunner
from ffn.export.runner import measured_once

runner = importlib.import_module("ffn.export.runner")  # ffn.export is the function


@pytest.fixture(scope="module")
def model() -> ffn.FrameFlexible:
    torch.manual_seed(0)
    flexible = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 8), interpolate=True)
    with torch.no_grad():
        for parameter in flexible.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return flexible.eval()


@pytest.mark.parametrize(
    "runtime",
    [
        "torch",
        "unfused",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("onnxruntime", "openvino")),
    ],
)
@torch.inference_mode()
def test_every_runtime_answers_as_the_network(model: ffn.FrameFlexible, runtime: str) -> None:
    if runtime not in ("torch", "unfused"):
        pytest.importorskip(runtime)
    run = InferenceRunner(model, runtime=runtime, precision="fp32")
    for batch, frames in ((1, 2), (3, 2), (2, 5), (1, 1)):
        clip = torch.randn(batch, 3, frames, 32, 32)
        assert_close(run(clip), model(clip))
    assert str(run) == f"{runtime}, fp32"
    assert run.select(5) == model.select(5)


SIGNAL = """
import gc, os, signal, torch, ffn
from ffn.export import InferenceRunner

signal.signal(signal.SIGUSR1, lambda *given: print("handled"))
model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 4)).eval()
runs = [InferenceRunner(model, runtime="openvino", precision="fp32") for _ in range(2)]
for run in runs:
    run(torch.randn(1, 3, 2, 32, 32))
del run, runs[0]
gc.collect()
del runs
gc.collect()
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.slow
def test_a_signal_after_openvino() -> None:
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", SIGNAL], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"handled\n"), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@torch.inference_mode()
def test_compiled(model: ffn.FrameFlexible) -> None:
    run = InferenceRunner(model, runtime="compile", precision="fp32")
    for frames in (2, 8):
        clip = torch.randn(1, 3, frames, 32, 32)
        assert_close(run(clip), model(clip))


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["torch", "compile"])
def test_on_a_gpu(model: ffn.FrameFlexible, runtime: str) -> None:
    clip = torch.randn(2, 3, 8, 64, 64)
    expected = model(clip).detach()
    run = InferenceRunner(ffn.extract(model, 8).cuda(), runtime=runtime)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: run(clip.cuda()).cpu(), range(8)))
    for found in answers:
        assert (found - expected).abs().max() <= 0.1 * expected.abs().max()


@torch.inference_mode()
def test_half_precision_is_close_and_not_equal(model: ffn.FrameFlexible) -> None:
    clip = torch.randn(1, 3, 8, 32, 32)
    expected = model(clip)
    for runtime in ("torch", "unfused"):
        logits = InferenceRunner(model, precision="bf16", runtime=runtime)(clip)
        assert logits.dtype == torch.float32
        assert 1e-5 < (logits - expected).abs().max() / expected.abs().max() < 0.05


@torch.inference_mode()
def test_auto_takes_the_fastest_and_measures_once(
    model: ffn.FrameFlexible, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def build(model: nn.Module, frames: int, clip: Tensor, precision: str) -> runner.Run:
        built.append(precision)
        return model

    def slow(model: nn.Module, frames: int, clip: Tensor, precision: str) -> runner.Run:
        return lambda clip: torch.linalg.svd(torch.rand(150, 150)) and model(clip)

    def broken(*_: object) -> runner.Run:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(runner, "RUNTIMES", {"torch": slow, "one": broken, "two": build})
    monkeypatch.setattr(runner, "available", lambda device: [*runner.RUNTIMES])
    monkeypatch.setattr(runner, "has_bf16", lambda: False)
    for _ in range(2):
        run = InferenceRunner(model, runtime="auto", cache=tmp_path)
        run(torch.randn(1, 3, 8, 32, 32))
        assert str(run) == "two, fp32"
    assert built == ["fp32"] * 3  # measured, run, run
    assert (tmp_path / "runtimes.json").exists()


def test_a_damaged_file_of_measurements_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "home" / "times.json"
    assert measured_once(path, "a", lambda: 1) == measured_once(path, "a", lambda: 2) == 1
    path.write_text("damaged")
    assert measured_once(path, "a", lambda: 3) == 3
    assert measured_once(None, "a", lambda: 4) == 4


def test_threads_build_one_network_per_count(
    model: ffn.FrameFlexible, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, build = [], runner.RUNTIMES["torch"]
    counting = {"torch": lambda *given: built.append(given[1]) or build(*given)}
    monkeypatch.setattr(runner, "RUNTIMES", counting)
    run = InferenceRunner(model, precision="fp32")
    clips = [torch.randn(1, 3, 1 + i % 3, 32, 32) for i in range(24)]
    with torch.inference_mode():
        expected = [model(clip) for clip in clips]

    def answer(clip: Tensor) -> Tensor:
        with torch.inference_mode():
            return run(clip)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(answer, clips))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)
    assert len(built) == 2  # 1 and 2 frames have one sub-network, 3 is interpolated


@pytest.mark.parametrize("other", [6, None])
def test_networks_that_depend_on_the_number_of_frames(
    other: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What a fold of one length cannot see is found with the first clip of another."""
    torch.manual_seed(0)
    network = ByLength(lambda frames: frames == other)
    model = randomize(ffn.convert(network, {8: (4, 11), 16: (12, 20)}, alter="none"))
    run = InferenceRunner(model, precision="fp32")
    with torch.inference_mode():
        for frames in (8, 6, 9, 16, 6):
            clip = torch.randn(2, 3, frames, 8, 8)
            assert_close(run(clip), model(clip))
    assert len(caplog.records) == (other == 6)


@torch.inference_mode()
def test_a_network_that_cannot_be_fused_runs_as_trained(
    model: ffn.FrameFlexible, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> runner.Run:
        raise FuseError("it differs")

    monkeypatch.setattr(runner, "RUNTIMES", {"torch": refuse})
    clip = torch.randn(1, 3, 8, 32, 32)
    assert torch.equal(InferenceRunner(model, precision="fp32")(clip), model(clip))
    assert "it differs" in caplog.text


def test_options_that_exclude_each_other(model: ffn.FrameFlexible) -> None:
    for options in (
        {"precision": "int4"},
        {"runtime": "tvm"},
        {"runtime": "onnxruntime", "precision": "bf16"},
    ):
        with pytest.raises(ValueError, match=next(iter(options.values()))):
            InferenceRunner(model, **options)
    slowfast = ffn.create_model("slowfast_tiny", num_classes=3).eval()
    with pytest.raises(ValueError, match="bf16"):  # of 3-D convolutions that are not fused
        InferenceRunner(slowfast, precision="bf16", runtime="unfused")
