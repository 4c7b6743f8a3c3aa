"""Time and memory of variants of one job, measured alternately, and the ratios between them.

Variants alternate, A B C A B C …, so that other load on the machine affects all of them equally.
Each round gives one ratio of a variant to the reference; the result is their quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ffn.devices import synchronize


@dataclass(frozen=True)
class Variant:
    """One variant and its measurements.

    Attributes:
        name: in tables and files.
        seconds: duration of a call in each round.
        peak_bytes: peak memory; None if not measured.
        speed: ratio of speed to the reference, quartiles over the rounds; 2 is twice as fast.
        memory: ratio of peak memory to the reference; None if not measured.
    """

    name: str
    seconds: tuple[float, ...]
    peak_bytes: int | None = None
    speed: tuple[float, ...] = (1.0, 1.0, 1.0)
    memory: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Variants that ran alternately.

    Attributes:
        title: what the variants have in common, e.g. "4 frames".
        items: videos, clips or samples per call.
        reference: name of the variant that the ratios are relative to.
        variants: in the order in which they ran.
    """

    title: str
    items: int
    reference: str
    variants: tuple[Variant, ...]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    device: torch.device,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Time functions alternately, after some rounds of warm-up.

    A CUDA device is synchronized around each call. The clock ``time.process_time`` counts the CPU
    time of this process.

    Returns:
        For each name the duration of a call in every round, in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            synchronize(device)
            start = clock()
            call()
            synchronize(device)
            if number >= warmup:
                seconds[name].append(clock() - start)
    return {name: tuple(values) for name, values in seconds.items()}


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def model_bytes(model: nn.Module) -> int:
    """Memory of the parameters and buffers of a model in bytes."""
    return tensor_bytes([*model.parameters(), *model.buffers()])


def in_sequence(name: str, parts: Sequence[Variant]) -> Variant:
    """A variant that runs others one after another on the same items, with the largest memory."""
    seconds = zip(*(part.seconds for part in parts), strict=True)
    return Variant(name, tuple(map(sum, seconds)), max(part.peak_bytes for part in parts))


def compare(title: str, items: int, reference: str, variants: Sequence[Variant]) -> Comparison:
    """Compute the ratios of all variants to the reference, round by round."""
    (over,) = (variant for variant in variants if variant.name == reference)
    return Comparison(title, items, reference, tuple(_relative(one, over) for one in variants))


def quartiles(values: Sequence[float]) -> tuple[float, ...]:
    """Lower quartile, median, upper quartile."""
    return tuple(np.percentile(values, (25, 50, 75)).tolist())


def _relative(one: Variant, over: Variant) -> Variant:
    speeds = [b / a for a, b in zip(one.seconds, over.seconds, strict=True)]
    is_known = one.peak_bytes is not None and over.peak_bytes
    memory = one.peak_bytes / over.peak_bytes if is_known else None
    return replace(one, speed=quartiles(speeds), memory=memory)
