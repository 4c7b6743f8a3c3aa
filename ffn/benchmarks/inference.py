"""Benchmark of inference: the network as trained, fused, in half precision, compiled, in ONNX."""

from __future__ import annotations

import copy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
from ffn.devices import has_bf16
from ffn.evaluation import count_macs
from ffn.export import Calibration, can_pack, export, fuse, pack
from ffn.export.graphs import Compiled, CudaGraphs
from ffn.zoo import create_model

UNFUSED = "as trained"
ONNX, INT8 = RUNTIME = ("ONNX Runtime", "ONNX Runtime, int8")
PACKED = {"fused, packed": "fused", "fused, bf16, packed": "fused, bf16"}  # and their origin
CUDA_GRAPH = ", CUDA graph"


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
        compiled: also the fused network compiled by ``torch.compile``, in bf16 where that is fast.
            On CUDA, networks in bf16 also run as CUDA graphs.
        onnx: also files for ONNX Runtime, in fp32 and int8; on a CPU.
        rounds: timed forward passes of each form; an untimed one comes before each.
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
        macs = sum(count_macs(flexible, clips[:1]).values())
        with tempfile.TemporaryDirectory() as folder:
            files = _onnx_files(flexible, clips[:1], Path(folder)) if onnx else {}
            for title, batch in titles.items():
                compared = _compare(title, networks, files, clips[:batch], rounds)
                yield replace(compared, macs=batch * macs)


def _compare(
    title: str,
    networks: Mapping[str, tuple[nn.Module, torch.dtype]],
    files: Mapping[str, Path],
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
            if not name.endswith(CUDA_GRAPH)  # graphs share memory, which they keep
        }
        peaks |= {name: onnx_memory(path, clips) for name, path in files.items()}
        sessions = {name: _open(path) for name, path in files.items()}
        calls |= {name: lambda run=run: run(clips) for name, run in sessions.items()}
        seconds = interleave(calls, rounds=rounds, device=clips.device, warmup=1, untimed=1)
    variants = [Variant(name, len(clips), seconds[name], peaks.get(name)) for name in calls]
    pairs = [(name, UNFUSED) for name in calls if name != UNFUSED]
    pairs += [("fused", "plain, fused"), *([(INT8, ONNX)] if files else [])]
    return _without_mixed_memory(compare(title, variants, pairs))


def _without_mixed_memory(comparison: Comparison) -> Comparison:
    """Without ratios of a process's memory to that of torch's allocator."""
    ratios = (
        replace(r, memory=None) if (r.name in RUNTIME) != (r.over in RUNTIME) else r
        for r in comparison.ratios
    )
    return replace(comparison, ratios=tuple(ratios))


def _networks(
    plain: nn.Module, flexible: nn.Module, clip: Tensor, compiled: bool
) -> dict[str, tuple[nn.Module, torch.dtype]]:
    """The forms that run in torch, each with the precision of its input.

    Those in bf16 are left out on a CPU for which torch has no fast operators.
    """
    frames, whole = clip.shape[2], torch.float32
    networks = {
        UNFUSED: (flexible, whole),
        "plain": (plain, whole),
        "fused": (fuse(flexible, frames, example=clip), whole),
        "plain, fused": (fuse(plain, example=clip), whole),
    }
    if clip.is_cuda or has_bf16():
        half = fuse(flexible, frames, example=clip).bfloat16()
        networks["fused, bf16"] = half, torch.bfloat16
    for name, origin in PACKED.items():
        network, dtype = networks.get(origin, (None, None))
        if network is not None and can_pack(dtype, clip.device.type):
            networks[name] = pack(copy.deepcopy(network)), dtype
    if compiled:
        name = "fused, bf16" if "fused, bf16" in networks else "fused"
        network, dtype = networks[name]
        networks[f"{name}, compiled"] = Compiled(network), dtype
    if clip.is_cuda:
        for name in [name for name in networks if "bf16" in name]:
            network, dtype = networks[name]
            networks[name + CUDA_GRAPH] = CudaGraphs(network), dtype
    return networks


def _onnx_files(flexible: nn.Module, clip: Tensor, folder: Path) -> dict[str, Path]:
    """Files in fp32 and int8; calibrated with a random clip, which the time ignores."""
    frames, size = clip.shape[2], clip.shape[-1]
    calibration = Calibration([clip], [(clip, 0)], max_difference=float("inf"))
    files = {}
    for name, given in ((ONNX, None), (INT8, calibration)):
        files[name] = folder / f"{len(files)}.onnx"
        export(flexible, files[name], frames=frames, size=size, calibration=given)
    return files


def _open(path: Path) -> Callable[[Tensor], object]:
    from ffn.export.formats import require
    from ffn.export.onnx_format import open_session

    return open_session(require("onnx").load(path))


def onnx_memory(path: Path, clips: Tensor) -> int:
    """Memory of a forward pass in ONNX Runtime with the weights, in bytes.

    The growth of the largest resident memory of a process that opens the file and runs it once,
    and the input.

    Args:
        path: an ONNX file.
        clips: (B, C, T, H, W); their values do not matter.

    Raises:
        RuntimeError: the process failed.
    """
    worker = Path(__file__).with_name("onnx_worker.py")
    given = [path, torch.get_num_threads(), *clips.shape]
    done = subprocess.run(
        [sys.executable, str(worker), *map(str, given)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"ONNX Runtime cannot run {path.name}: {done.stderr.strip()}")
    return int(done.stdout) + tensor_bytes([clips])
