"""Time and memory of variants of one job, measured alternately, and the ratios between them.

Variants alternate, A B C A B C …, so that other load on the machine affects all of them equally.
Each round gives one ratio per pair of variants; the result is their median and quartiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Variant:
    """One variant and its measurements.

    Attributes:
        name: in tables and files.
        items: videos, clips or samples per call.
        seconds: duration of a call in each round.
        peak_bytes: peak memory; None if not measured.
    """

    name: str
    items: int
    seconds: tuple[float, ...]
    peak_bytes: int | None = None

    @property
    def rate(self) -> float:
        """Items per second in the median round."""
        return self.items / statistics.median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """One variant relative to another.

    Attributes:
        name: the variant.
        over: the reference variant.
        speed: ratio of items per second, median over the rounds; 2 is twice as fast.
        low: lower quartile of the ratios of the rounds.
        high: upper quartile.
        memory: ratio of peak memory; None if not measured.
    """

    name: str
    over: str
    speed: float
    low: float
    high: float
    memory: float | None


@dataclass(frozen=True)
class Comparison:
    """Variants that ran alternately, and ratios between them.

    Attributes:
        title: what the variants have in common, e.g. "4 frames".
        variants: in the order in which they ran.
        ratios: of the compared pairs.
    """

    title: str
    variants: tuple[Variant, ...]
    ratios: tuple[Ratio, ...]


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    device: torch.device,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, tuple[float, ...]]:
    """Time functions alternately.

    Args:
        calls: functions by name.
        rounds: timed calls of each function.
        device: a CUDA device is synchronized around each call.
        warmup: rounds before the timed ones.
        clock: current time in seconds; ``time.process_time`` counts the CPU time of this process.

    Returns:
        For each name the duration of a call in every round, in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warmup + rounds):
        for name, call in calls.items():
            _synchronize(device)
            start = clock()
            call()
            _synchronize(device)
            if number >= warmup:
                seconds[name].append(clock() - start)
    return {name: tuple(values) for name, values in seconds.items()}


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Peak memory of the tensors that a call allocates on a CPU or a CUDA device, in bytes.

    Tensors allocated before the call do not count. The value comes from torch's allocator; the
    process uses more, because allocators and libraries keep reserves.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    changes = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda change: change.start_ns()):
        held += change.nbytes()  # negative when freed
        peak = max(peak, held)
    return peak


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def model_bytes(model: nn.Module) -> int:
    """Memory of the parameters and buffers of a model in bytes."""
    return tensor_bytes([*model.parameters(), *model.buffers()])


def in_sequence(name: str, parts: Sequence[Variant]) -> Variant:
    """A variant that runs others one after another on the same items, with the largest memory."""
    seconds = zip(*(part.seconds for part in parts), strict=True)
    peak = max(part.peak_bytes for part in parts)
    return Variant(name, parts[0].items, tuple(map(sum, seconds)), peak)


def compare(
    title: str, variants: Sequence[Variant], pairs: Sequence[tuple[str, str]]
) -> Comparison:
    """Compute the ratios of pairs of variants, by name, round by round."""
    named = {variant.name: variant for variant in variants}
    ratios = tuple(_ratio(named[one], named[other]) for one, other in pairs)
    return Comparison(title, tuple(variants), ratios)


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return np.percentile(values, (25, 50, 75)).tolist()


def _ratio(one: Variant, other: Variant) -> Ratio:
    factor = one.items / other.items
    speeds = [factor * b / a for a, b in zip(one.seconds, other.seconds, strict=True)]
    is_known = one.peak_bytes is not None and other.peak_bytes
    memory = one.peak_bytes / other.peak_bytes if is_known else None
    low, speed, high = quartiles(speeds)
    return Ratio(one.name, other.name, speed, low, high, memory)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
