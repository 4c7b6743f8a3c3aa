"""Cost of a forward pass: multiply-accumulates, parameters, latency, memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ffn.core import PrivateModules
from ffn.devices import synchronize
from ffn.evaluation.collect import evaluating

_FAST_PATH = threading.Lock()  # torch has one setting for all threads


def count_macs(model: nn.Module, clip: Tensor) -> int:
    """Count the multiply-accumulates of one forward pass.

    Convolutions, linear layers, matrix products and attention count. Norms, activations, pooling
    and weight alterations (which fold into the next convolution) do not. One multiply-accumulate
    is two floating-point operations of torch's counter.

    Args:
        model: on the device of the clip; on "meta" nothing is computed.
        clip: (B, C, T, H, W); the count is for the whole batch.
    """
    return count_macs_by_module(model, model, clip)[""]


def count_macs_by_module(model: nn.Module, network: nn.Module, clip: Tensor) -> dict[str, int]:
    """Count the multiply-accumulates of one forward pass, by module; see :func:`count_macs`.

    Returns:
        Name of a module in ``network``, which is the model or a module in it, to
        multiply-accumulates; "" has those of the whole pass.
    """
    inner = next(name for name, module in model.named_modules() if module is network)
    start = ".".join(filter(None, (type(model).__name__, inner)))  # torch's name of the network
    macs = {name: sum(counts.values()) // 2 for name, counts in _count_flops(model, clip).items()}
    inside = {n[len(start) + 1 :]: m for n, m in macs.items() if n.startswith(f"{start}.")}
    return {**inside, "": macs.get("Global", 0)}


def _count_flops(model: nn.Module, clip: Tensor) -> dict[str, dict[Any, int]]:
    """Floating-point operations by module (as torch's counter names them) and operator."""
    # The counter fails on a layer that takes a view of a parameter, unless it has no gradient.
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with _FAST_PATH:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # the counter skips fused attention
        try:
            counter = FlopCounterMode(display=False)
            with evaluating(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
                functional_call(model, parameters, (clip,))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    return counter.get_flop_counts()


def count_parameters(model: nn.Module, active: int | None = None) -> int:
    """Count the parameters of a network; a shared parameter counts once.

    Args:
        model: any network.
        active: the count of a sub-network of a frame-flexible network: count the shared parameters
            and one set of private ones, as in ``ffn.extract(model, active)``.
    """
    inactive = {
        id(parameter)
        for private in model.modules()
        if isinstance(private, PrivateModules) and active is not None
        for copy in list(private.values())[1:]  # all have the same number of parameters
        for parameter in copy.parameters()
    }
    return sum(p.numel() for p in model.parameters() if id(p) not in inactive)


def measure_latency(
    run: Callable[[Tensor], Tensor],
    clip: Tensor,
    *,
    model: nn.Module | None = None,
    repeats: int = 20,
    warmup: int = 3,
    seconds: float = 3.0,
) -> float:
    """Measure the median time of a forward pass in eval mode, in milliseconds.

    The device is synchronized around each pass: the result is latency, not throughput.

    Args:
        run: a network, or a function that runs it, on the device of the clip.
        clip: (B, C, T, H, W), usually B = 1.
        model: the network that ``run`` runs, for eval mode; default: ``run`` itself.
        repeats: maximum number of timed passes.
        warmup: passes before the timed ones.
        seconds: time limit; at least three passes are timed.
    """
    times: list[float] = []
    with evaluating(run if model is None else model), torch.inference_mode():
        for _ in range(warmup):
            run(clip)
        while len(times) < repeats and (len(times) < 3 or sum(times) < seconds):
            synchronize(clip.device)
            start = time.perf_counter()
            run(clip)
            synchronize(clip.device)
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Peak memory of the tensors that a call allocates on a CPU or a CUDA device, in bytes.

    Tensors allocated before the call do not count. The value comes from torch's allocator; the
    process uses more, because allocators and libraries keep reserves.
    """
    if device.type == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        call()
    changes = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda change: change.start_ns()):
        held += change.nbytes()  # negative when freed
        peak = max(peak, held)
    return peak
