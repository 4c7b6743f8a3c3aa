"""Benchmark of inference: the network as trained, fused, in half precision, compiled, in ONNX."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    interleave,
    model_bytes,
    peak_memory,
    tensor_bytes,
)
from ffn.core import convert
from ffn.export import Calibration, can_pack, export, fuse, pack
from ffn.zoo import create_model

UNFUSED = "as trained"
PACKED = {"fused, packed": "fused", "fused, bf16, packed": "fused, bf16"}  # and their origin


def compare_inference(
    model: str,
    trained_frames: Sequence[int],
    *,
    frames: Sequence[int],
    batch_size: int,
    size: int,
    num_classes: int,
    compiled: bool,
    onnx: bool,
    rounds: int,
    device: torch.device,
    skip: Collection[str] = (),
) -> Iterator[Comparison]:
    """Compare the forward passes of a frame-flexible network in several forms.

    Args:
        model: name of a model; its weights are random.
        trained_frames: sub-networks of the frame-flexible network.
        frames: frame counts of the clips; one comparison each.
        batch_size: clips per forward pass.
        size: height and width of the clips, pixels.
        num_classes: K.
        compiled: also the fused bf16 network compiled by ``torch.compile``.
        onnx: also files for ONNX Runtime, in fp32 and int8; on a CPU.
        rounds: timed forward passes of each form.
        device: CPU or CUDA.
        skip: titles of comparisons that are not made again.
    """
    plain = create_model(model, num_classes=num_classes).to(device).eval()
    flexible = convert(plain, trained_frames)
    for count in sorted(set(frames)):
        title = f"{model}, {count} frames on sub-network {flexible.select(count)}, "
        title += f"batches of {batch_size} at {size} px"
        if title in skip:
            continue
        clip = torch.randn(batch_size, 3, count, size, size, device=device)  # (B, C, T, H, W)
        networks = _networks(plain, flexible, clip, compiled)
        calls: dict[str, Callable[[], object]] = {
            name: lambda network=network, x=x: network(x) for name, (network, x) in networks.items()
        }
        sizes = {name: model_bytes(network) for name, (network, _) in networks.items()}
        # Packed weights are no parameters.
        sizes |= {name: sizes[PACKED[name]] for name in sizes if name in PACKED}
        with torch.inference_mode():
            peaks = {
                name: sizes[name] + tensor_bytes([x]) + peak_memory(calls[name], device)
                for name, (_, x) in networks.items()
            }
            if onnx:
                calls |= _onnx_calls(flexible, clip)
            seconds = interleave(calls, rounds=rounds, device=device)
        variants = [Variant(name, batch_size, seconds[name], peaks.get(name)) for name in calls]
        pairs = [(name, UNFUSED) for name in calls if name != UNFUSED]
        pairs += [("fused", "plain, fused")]
        yield compare(title, variants, pairs)


def _networks(
    plain: nn.Module, flexible: nn.Module, clip: Tensor, compiled: bool
) -> dict[str, tuple[nn.Module, Tensor]]:
    """The forms that run in torch, each with its input."""
    fused = fuse(flexible, clip.shape[2], example=clip)
    half = fuse(flexible, clip.shape[2], example=clip).bfloat16()
    networks = {
        UNFUSED: (flexible, clip),
        "plain": (plain, clip),
        "fused": (fused, clip),
        "plain, fused": (fuse(plain, example=clip), clip),
        "fused, bf16": (half, clip.bfloat16()),
    }
    for name, origin in PACKED.items():
        network, x = networks[origin]
        if can_pack(x.dtype) and not x.is_cuda:
            networks[name] = pack(copy.deepcopy(network)), x
    if compiled:
        networks["fused, bf16, compiled"] = (torch.compile(half), clip.bfloat16())
    return networks


def _onnx_calls(flexible: nn.Module, clip: Tensor) -> dict[str, Callable[[], object]]:
    """ONNX Runtime in fp32 and int8; calibrated with random clips, which the time ignores."""
    from ffn.export.formats import require
    from ffn.export.onnx_format import open_session

    frames, size = clip.shape[2], clip.shape[-1]
    one = clip[:1].clone()
    calibration = Calibration([one], [(one, 0)], max_difference=float("inf"))
    calls: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode(False):
        for name, given in (("ONNX Runtime", None), ("ONNX Runtime, int8", calibration)):
            path = Path(folder) / f"{len(calls)}.onnx"
            export(flexible, path, frames=frames, size=size, calibration=given)
            session = open_session(require("onnx").load(path))
            calls[name] = lambda session=session: session(clip)
    return calls
