"""Streams against the causal network for whole clips, and averages against their formula."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from export_helpers import randomize
from torch import Tensor, nn

import ffn
from ffn.cli import main
from ffn.core import FrameFlexible, PrivateModules
from ffn.engine import build_network
from ffn.engine.config import load_config
from ffn.zoo import save_weights

FAMILIES = ["tsm_tiny", "tea_tiny", "vit_tiny"]
COUNTS = (4, 8, 16)


def causal(name: str = "tsm_tiny", **options: object) -> FrameFlexible:
    torch.manual_seed(0)
    plain = ffn.create_model(name, num_classes=5, causal=True)
    return randomize(ffn.convert(plain, COUNTS, **options))


def video(frames: int = 11) -> Tensor:
    return torch.randn(2, 3, frames, 32, 32, generator=torch.Generator().manual_seed(0))


def run(stream: ffn.export.Stream, clip: Tensor) -> Tensor:
    return torch.stack([stream.step(frame) for frame in clip.unbind(2)])


def difference(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_equals_the_clip_of_all_frames_so_far(name: str, stride: int) -> None:
    model, clip = causal(name), video(19)  # longer than the attention of vit_tiny
    expected = [model(clip[:, :, : n + 1], active=16 // stride) for n in range(19)]
    assert difference(run(ffn.stream(model, stride=stride), clip), torch.stack(expected)) < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_bf16(name: str) -> None:
    model, clip = causal(name), video()
    expected = torch.stack([model(clip[:, :, : n + 1], active=16) for n in range(11)])
    assert difference(run(ffn.stream(model, precision="bf16"), clip), expected) < 0.1


@torch.no_grad()
def test_image_networks_read_one_frame() -> None:
    model, clip = ffn.create_model("tsn.resnet18", num_classes=5).eval(), video(3)
    assert difference(run(ffn.stream(model), clip)[2], model(clip)) < 1e-5


class NormOfFrame(nn.Module):
    """The private norm of each frame's, or tubelet's, own count, for one clip."""

    def __init__(self, norms: PrivateModules, counts: list[int]) -> None:
        super().__init__()
        self.norms, self.counts = norms, counts

    def forward(self, x: Tensor) -> Tensor:
        dim = int(x.ndim == 3)  # of tokens; else of the images of a clip
        rows = x.split(x.shape[dim] // len(self.counts), dim)
        each = zip(self.counts, rows, strict=True)
        return torch.cat([self.norms[str(count)](row) for count, row in each], dim)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_another_stride_reads_what_the_one_before_kept(name: str) -> None:
    model, clip, length = causal(name, alter="none"), video(12)[:1], 1 + (name == "vit_tiny")
    strides = [1, 1, 1, 1, 2, 2, 4, 4, 1, 1, 2, 2]
    stream, found = ffn.stream(model), []
    for stride, frame in zip(strides, clip.unbind(2), strict=True):
        stream.stride = stride
        found.append(stream.step(frame)[0])

    weights = torch.tensor(strides[::length])[:, None]
    for key, module in [*model.model.named_modules()]:
        if isinstance(module, PrivateModules):
            norms = NormOfFrame(module, (16 // weights[:, 0]).tolist())
            model.model.set_submodule(key, norms)
    plain = model.model
    if length == 1:
        entries = plain._run(plain.net, clip)[0]  # logits of each frame
    else:
        entries = plain.forward_features(clip).mean((3, 4))[0].T  # of each tubelet
    means = (entries * weights).cumsum(0) / weights.cumsum(0)
    expected = means if length == 1 else plain.head(plain.fc_norm(means[None]))[0]
    assert difference(torch.stack(found)[length - 1 :: length], expected) < 1e-5


@torch.no_grad()
def test_window_forgets() -> None:
    model, clip = causal(), video()
    model.activate(16)
    logits = model.model._run(model.model.net, clip).unbind(1)
    found = run(ffn.stream(model, window=4), clip)
    mean = torch.zeros(2, 5)
    for n, x in enumerate(logits, 1):
        mean += (x - mean) / min(n, 4)
        assert difference(found[n - 1], mean) < 1e-5
    vit = causal("vit_tiny")  # of tubelets of two frames
    ends = [run(ffn.stream(vit, window=window), clip)[-1] for window in (None, 16, 4)]
    assert difference(ends[0], ends[1]) < 1e-5 < difference(ends[0], ends[2])
    short, forgets = (run(ffn.stream(vit, window=w), clip[:, :, :6]) for w in (None, 4))
    assert difference(short[3], forgets[3]) < 1e-5 < difference(short[5], forgets[5])


def test_threads_copies_and_saved_states() -> None:
    model, clips = causal("tea_tiny"), [video()[:, :, start:] for start in range(5)] * 2
    first = ffn.stream(model)
    expected = [run(first.copy(), clip) for clip in clips]
    with ThreadPoolExecutor(10) as pool:
        found = [*pool.map(lambda clip: run(first.copy(), clip), clips)]
    assert all(map(torch.equal, found, expected))

    run(first, video()[:, :, :4])
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    other, rest = ffn.stream(model), video()[:, :, 4:]
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(other, rest), run(first.copy(), rest))
    first.reset(1)  # the other stream of the batch goes on
    again = run(first, rest)
    assert difference(again[:, 0], expected[0][4:, 0]) < 1e-5
    assert difference(again[:, 1], run(ffn.stream(model), rest)[:, 1]) < 1e-5
    with pytest.raises(ValueError, match="the state has 21 entries"):
        ffn.stream(causal()).load_state_dict(first.state_dict())


@torch.no_grad()
def test_leaves_states_and_models_of_the_caller_alone() -> None:
    model, clip = causal(), video()
    first, other = ffn.stream(model), ffn.stream(model)
    run(first, clip[:, :, :4])
    state = {name: value.clone() for name, value in first.state_dict().items()}
    other.load_state_dict(state)
    for value in [*state.values(), *first.state_dict().values()]:
        value.fill_(9)
    assert all(map(torch.equal, first.state_dict().values(), other.state_dict().values()))
    assert torch.equal(first.step(clip[:, :, 4]), other.step(clip[:, :, 4]))

    half = ffn.create_model("tsm_tiny", num_classes=5, causal=True).eval().bfloat16()
    ffn.stream(half).step(clip[:, :, 0])
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_bad_frames_after_others() -> None:
    images = ffn.stream(ffn.create_model("tsn.resnet18", num_classes=5).eval())
    images.step(video()[:, :, 0])
    with pytest.raises(ValueError, match="call reset"):  # a batch of 1 would broadcast
        images.step(video()[:1, :, 0])
    stream = ffn.stream(causal())
    stream.step(video()[:, :, 0])
    with pytest.raises(RuntimeError, match="channels"):  # torch's own message
        stream.step(torch.zeros(2, 7, 32, 32))


def test_bad_input() -> None:
    model = causal()
    with pytest.raises(ValueError, match=r"SlowFast reads later frames.*model\.causal=true"):
        ffn.stream(ffn.create_model("slowfast_tiny").eval())
    with pytest.raises(ValueError, match=r"call model\.eval"):
        ffn.stream(ffn.create_model("tsm_tiny", causal=True))
    with pytest.raises(ValueError, match="stride is 3; expected 1, 2, 4"):
        ffn.stream(model, stride=3)
    for options in ({"window": 0}, {"precision": "fp8"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} is "):
            ffn.stream(model, **options)
    stream = ffn.stream(model)
    stream.step(video()[0, :, 0])
    for frame in (torch.zeros(3, 40, 40), torch.zeros(2, 3, 32, 32)):
        with pytest.raises(ValueError, match="earlier ones were not; call reset"):
            stream.step(frame)
    for frame in (video(), video()[0, :, 0].to(torch.uint8)):
        with pytest.raises(ValueError, match=r"expected normalized \(C, H, W\)"):
            stream.step(frame)
    with pytest.raises(TypeError, match="expected a network"):
        ffn.stream("tsm_tiny.motion_f4_8_16")
    with pytest.raises(ValueError, match=r"stride is 2\.0; expected 1, 2, 4"):
        stream.stride = 2.0
    with pytest.raises(ValueError, match='causal needs positions="rotary"'):
        ffn.create_model("vit_tiny", causal=True, positions="sine")


def test_option_of_a_training() -> None:
    config = load_config(None, ["model.name=tsm_tiny", "model.causal=true"])
    assert build_network.build_model(config, 3).model.causal
    assert build_network.model_args(config) == {"causal": True}


@pytest.mark.parametrize(
    "suffix", ["pt2", *(pytest.param(s, marks=pytest.mark.slow) for s in ("onnx", "aoti.pt2"))]
)
@pytest.mark.parametrize(
    "name", [FAMILIES[0], *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES[1:])]
)
def test_exported_step(tmp_path: Path, name: str, suffix: str) -> None:
    stream = ffn.stream(causal(name), stride=2, window=4, precision="bf16")
    report = ffn.export(stream, tmp_path / f"step.{suffix}", size=32)  # compares
    assert report.metadata["sub_network"] == 8
    state = report.metadata["stream"]["state"]
    stream.step(video()[:, :, 0])
    assert {n: x[1:] for n, x in state.items()} == {
        name: list(x.shape[1:]) for name, x in stream.state_dict().items()
    }
    with pytest.raises(FileExistsError):
        ffn.export(stream, tmp_path / f"step.{suffix}", size=32)


def test_export_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    meta = {"model": "tsm_tiny", "num_classes": 5, "trained_frames": COUNTS}
    meta["model_args"], model = {"causal": True}, causal()
    save_weights(model, Path("net.safetensors"), meta | {"preprocessing": {"crop": 32}})
    command = ["export", "--weights", "net.safetensors", "--stride", "2", "--to", "torch"]
    assert main([*command, "--window", "4"]) == 0
    step = torch.export.load("net.stride_2.pt2").module()
    described = json.loads(Path("net.stride_2.pt2.json").read_text())["stream"]
    state = [torch.zeros(2, *shape[1:]) for shape in described["state"].values()]
    right = run(ffn.stream(model, stride=2, window=4), video())
    for frame, expected in zip(video().unbind(2), right, strict=True):
        logits, *state = step(frame, *state)
        assert difference(logits, expected) < 1e-5
    assert main([*command, "--frames", "4"]) == 2
    assert main([*command, "--output", "b.pt2", "--probabilities"]) == 2
    assert main([*command[:3], "--frames", "4", "--to", "torch", "--window", "4"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_exported_clips_of_any_length(tmp_path: Path, name: str) -> None:
    ffn.export(causal(name), tmp_path / "clips.pt2", frames=8, size=32, dynamic_frames=True)
