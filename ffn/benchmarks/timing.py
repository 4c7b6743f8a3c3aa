"""Time and memory of variants of one job, measured alternately, and the ratios between them.

Variants alternate, A B C A B C …, so that other load on the machine affects all of them equally.
Each round gives one ratio per pair of variants; the result is their median and quartiles.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        calls: name -> function. The result of the function is discarded.
        rounds: timed calls of each function.
        device: the device that the functions use; a CUDA device is synchronized around each call.
        warmup: rounds before the timed ones.
        clock: current time in seconds; ``time.process_time`` counts the CPU time of this process.

    Returns:
        For each name the duration of a call in every round, in seconds.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; expected at least 1")
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
    """Peak memory of the tensors that a call allocates, in bytes.

    Tensors allocated before the call do not count. The value comes from torch's allocator of the
    device; the process uses more, because allocators and libraries keep reserves.

    Args:
        call: runs once.
        device: the device of its tensors, a CPU or a CUDA device.

    Raises:
        ValueError: another device.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"memory of device {device} cannot be measured; allowed: cpu, cuda")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        run.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]  # negative when freed
        peak = max(peak, held)
    return peak


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def model_bytes(model: nn.Module) -> int:
    """Memory of the parameters and buffers of a model in bytes."""
    return tensor_bytes([*model.parameters(), *model.buffers()])


def in_sequence(name: str, parts: Sequence[Variant]) -> Variant:
    """Combine variants into one that runs them one after another on the same items.

    Args:
        name: of the result.
        parts: variants of one run, all with the same number of items.

    Returns:
        A variant whose rounds are the sums of the rounds of the parts; its memory is the largest.
    """
    peaks = [part.peak_bytes for part in parts]
    return Variant(
        name,
        parts[0].items,
        tuple(sum(seconds) for seconds in zip(*(part.seconds for part in parts), strict=True)),
        None if None in peaks else max(peaks),
    )


def compare(
    title: str, variants: Sequence[Variant], pairs: Sequence[tuple[str, str]]
) -> Comparison:
    """Compute the ratios of pairs of variants, round by round.

    Args:
        title: see :class:`Comparison`.
        variants: of one run of :func:`interleave`.
        pairs: (variant, reference), by name.
    """
    named = {variant.name: variant for variant in variants}
    ratios = tuple(_ratio(named[one], named[other]) for one, other in pairs)
    return Comparison(title, tuple(variants), ratios)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _ratio(one: Variant, other: Variant) -> Ratio:
    factor = one.items / other.items
    speeds = [factor * b / a for a, b in zip(one.seconds, other.seconds, strict=True)]
    memory = None
    if one.peak_bytes is not None and other.peak_bytes:
        memory = one.peak_bytes / other.peak_bytes
    low, speed, high = quartiles(speeds)
    return Ratio(one.name, other.name, speed, low, high, memory)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
