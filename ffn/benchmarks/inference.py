"""Benchmark of inference: the network as trained, fused, in half precision, compiled, in ONNX."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    batch_sizes: Sequence[int],
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
        batch_sizes: clips per forward pass; one comparison each.
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
        title = f"{model}, {count} frames on sub-network {flexible.select(count)}, batches of "
        titles = {f"{title}{batch} at {size} px": batch for batch in batch_sizes}
        titles = {title: batch for title, batch in titles.items() if title not in skip}
        if not titles:
            continue
        clips = torch.randn(max(titles.values()), 3, count, size, size, device=device)
        networks = _networks(plain, flexible, clips[:1], compiled)
        sessions = _onnx_sessions(flexible, clips[:1]) if onnx else {}
        for title, batch in titles.items():
            yield _compare(title, networks, sessions, clips[:batch], rounds)


def _compare(
    title: str,
    networks: Mapping[str, tuple[nn.Module, torch.dtype]],
    sessions: Mapping[str, Callable[[Tensor], object]],
    clips: Tensor,
    rounds: int,
) -> Comparison:
    """Time and memory of all forms for the same clips (B, C, T, H, W)."""
    inputs = {name: clips.to(dtype) for name, (_, dtype) in networks.items()}
    calls: dict[str, Callable[[], object]] = {
        name: lambda run=run, x=inputs[name]: run(x) for name, (run, _) in networks.items()
    }
    sizes = {name: model_bytes(network) for name, (network, _) in networks.items()}
    # Packed weights are no parameters.
    sizes |= {name: sizes[PACKED[name]] for name in sizes if name in PACKED}
    with torch.inference_mode():
        peaks = {
            name: sizes[name] + tensor_bytes([x]) + peak_memory(calls[name], clips.device)
            for name, x in inputs.items()
        }
        calls |= {name: lambda run=run: run(clips) for name, run in sessions.items()}
        seconds = interleave(calls, rounds=rounds, device=clips.device)
    variants = [Variant(name, len(clips), seconds[name], peaks.get(name)) for name in calls]
    pairs = [(name, UNFUSED) for name in calls if name != UNFUSED]
    return compare(title, variants, [*pairs, ("fused", "plain, fused")])


def _networks(
    plain: nn.Module, flexible: nn.Module, clip: Tensor, compiled: bool
) -> dict[str, tuple[nn.Module, torch.dtype]]:
    """The forms that run in torch, each with the precision of its input."""
    frames, whole = clip.shape[2], torch.float32
    half = fuse(flexible, frames, example=clip).bfloat16()
    networks = {
        UNFUSED: (flexible, whole),
        "plain": (plain, whole),
        "fused": (fuse(flexible, frames, example=clip), whole),
        "plain, fused": (fuse(plain, example=clip), whole),
        "fused, bf16": (half, torch.bfloat16),
    }
    for name, origin in PACKED.items():
        network, dtype = networks[origin]
        if can_pack(dtype) and not clip.is_cuda:
            networks[name] = pack(copy.deepcopy(network)), dtype
    if compiled:
        networks["fused, bf16, compiled"] = torch.compile(half), torch.bfloat16
    return networks


def _onnx_sessions(flexible: nn.Module, clip: Tensor) -> dict[str, Callable[[Tensor], object]]:
    """ONNX Runtime in fp32 and int8; calibrated with a random clip, which the time ignores."""
    from ffn.export.formats import require
    from ffn.export.onnx_format import open_session

    frames, size = clip.shape[2], clip.shape[-1]
    calibration = Calibration([clip], [(clip, 0)], max_difference=float("inf"))
    sessions: dict[str, Callable[[Tensor], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, given in (("ONNX Runtime", None), ("ONNX Runtime, int8", calibration)):
            path = Path(folder) / f"{len(sessions)}.onnx"
            export(flexible, path, frames=frames, size=size, calibration=given)
            sessions[name] = open_session(require("onnx").load(path))
    return sessions
