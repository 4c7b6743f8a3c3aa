"""Benchmark of inference: frame-flexible network, extracted sub-network, plain network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ffn.benchmarks.timing import (
    Comparison,
    Variant,
    compare,
    interleave,
    model_bytes,
    peak_memory,
    tensor_bytes,
)
from ffn.core import convert, extract
from ffn.evaluation import inference
from ffn.zoo import create_model

PAIRS = (("flexible", "extracted"), ("flexible", "plain"), ("extracted", "plain"))


def compare_inference(
    model: str,
    trained_frames: Sequence[int],
    *,
    frames: Sequence[int],
    batch_size: int,
    size: int,
    num_classes: int,
    precision: str,
    rounds: int,
    device: torch.device,
) -> list[Comparison]:
    """Compare the forward passes of three networks at each frame count.

    Args:
        model: name of a model.
        trained_frames: sub-networks of the frame-flexible network.
        frames: frame counts of the clips; one comparison each.
        batch_size: clips per forward pass.
        size: height and width of the clips, pixels.
        num_classes: K.
        precision: "fp32", "bf16" or "fp16".
        rounds: timed forward passes of each network.
        device: CPU or CUDA.
    """
    plain = create_model(model, num_classes=num_classes).to(device).eval()
    flexible = convert(plain, trained_frames)
    comparisons = []
    for count in sorted(set(frames)):
        active = flexible.select(count)
        clip = torch.randn(batch_size, 3, count, size, size, device=device)  # (B, C, T, H, W)
        models = {"flexible": flexible, "extracted": extract(flexible, active), "plain": plain}
        calls: dict[str, Callable[[], Tensor]] = {
            name: lambda network=network, clip=clip: network(clip)
            for name, network in models.items()
        }
        with inference(device, precision):
            seconds = interleave(calls, rounds=rounds, device=device)
            peaks = {name: peak_memory(call, device) for name, call in calls.items()}
        variants = [
            Variant(
                name,
                batch_size,
                seconds[name],
                model_bytes(network) + tensor_bytes([clip]) + peaks[name],
            )
            for name, network in models.items()
        ]
        title = f"{model}, {count} frames on sub-network {active}, "
        title += f"batches of {batch_size} at {size} px"
        comparisons.append(compare(title, variants, PAIRS))
    return comparisons
