"""Networks with a graph for each shape of a clip: ``torch.compile``, CUDA graphs."""

from __future__ import annotations

import functools
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GRAPHS = 8  # torch's limit for a function, see torch._dynamo.config.recompile_limit

_log = logging.getLogger(__name__)
_building = threading.RLock()  # options of the compiler are those of the process; they nest


class Graphs(nn.Module, ABC):
    """A network that runs as a graph of its own for each shape of a clip.

    It has up to eight graphs. Clips of other shapes run without one, with a warning, and so do
    those for which no graph can be built. Outputs have no gradients. Several threads may call it.

    Args:
        network: in eval mode. Its weights must not change after the first call.
    """

    maker: str  # what builds a graph, for messages
    lacking: str  # that a network has none

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._runs: dict[tuple, Callable[[Tensor], Tensor]] = {}  # by shape
        self._warned = False

    @abstractmethod
    def build(self, clip: Tensor) -> Callable[[Tensor], Tensor]:
        """The function that runs the network for clips of this shape; any error: there is none."""

    def forward(self, clip: Tensor) -> Tensor:
        """Logits of a clip; the first call for a shape builds its graph, one at a time."""
        with torch.inference_mode(False), torch.no_grad():
            clip = clip.clone() if clip.is_inference() else clip
            key = clip.shape, clip.dtype, clip.device
            if key not in self._runs:
                with _building:
                    if key not in self._runs:
                        self._runs[key] = self._choose(clip)
            return self._runs[key](clip)

    def _choose(self, clip: Tensor) -> Callable[[Tensor], Tensor]:
        """The graph for a clip, or the network if there is none."""
        if sum(run is not self.network for run in self._runs.values()) >= GRAPHS:
            self._warn(clip, f"it has graphs for {GRAPHS} other shapes")
            return self.network
        try:
            return self.build(clip)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # any, of a network of anyone
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(clip, f"{self.maker} failed ({text[:200]})")
            return self.network

    def _warn(self, clip: Tensor, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        _log.warning(
            "%s %s for clips of shape %s: %s. Such clips have the same answers, but run more "
            "slowly",
            *(type(self.network).__name__, self.lacking, tuple(clip.shape), reason),
        )


class Compiled(Graphs):
    """A network that ``torch.compile`` compiles for inference.

    - The graphs are the network's own. torch keeps those of a function, such as the forward of a
      class, in one place; after eight for different networks, others would run uncompiled.
    - On a CPU, weights become constants of the graph ("freezing"), which oneDNN packs. Graphs for
      several shapes would then fail for TEA (torch 2.15).
    - There is one graph for clips of inference tensors and of others.

    Args:
        network: see :class:`Graphs`.
    """

    maker = "torch.compile"
    lacking = "is not compiled"

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)

        def run(clip: Tensor) -> Tensor:
            return network(clip)

        run.__code__ = run.__code__.replace()  # a copy; graphs are kept with the code
        self._run = torch.compile(run, dynamic=False)

    def build(self, clip: Tensor) -> Callable[[Tensor], Tensor]:
        """Compile; see :meth:`Graphs.build`."""
        with _frozen_weights(clip):
            self._run(clip)
        return self._run


class CudaGraphs(Graphs):
    """A network on a CUDA device whose kernels are launched together.

    Without a graph, Python and the driver launch a few hundred kernels one after another, which
    takes longer than the kernels of a single clip. Graphs of a device, also of different networks,
    share the memory of their activations and run one after another, on all streams.

    Args:
        network: see :class:`Graphs`; also one of :class:`Compiled`. It must not read values of
            tensors in Python, e.g. with ``.item()``.
    """

    maker = "a CUDA graph"
    lacking = "has no CUDA graph"

    def build(self, clip: Tensor) -> Callable[[Tensor], Tensor]:
        """Record the kernels of a forward pass; see :meth:`Graphs.build`."""
        shared = _on_device(clip.device)
        with shared.lock, torch.cuda.device(clip.device):
            static, graph = clip.clone(), torch.cuda.CUDAGraph()
            with _OnOneDevice():
                (self.network.network if isinstance(self.network, Graphs) else self.network)(static)
            shared.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(shared.stream):  # libraries start, torch compiles
                for _ in range(2):
                    self.network(static)
            try:
                with torch.cuda.graph(
                    graph,
                    pool=shared.pool,
                    stream=shared.stream,
                    capture_error_mode="thread_local",  # others may go on to use the device
                ):
                    answer = self.network(static)
            except Exception:
                shared.give_up(clip.device)
                raise

        def run(clip: Tensor) -> Tensor:
            with shared.lock, torch.cuda.device(clip.device):
                stream = torch.cuda.current_stream()
                stream.wait_event(shared.done)
                static.copy_(clip)
                graph.replay()
                logits = answer.clone()  # the next graph overwrites it
                shared.done.record(stream)
            return logits

        return run


class _OnDevice:
    """What the graphs of a device share."""

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.lock, self.stream = threading.Lock(), torch.cuda.Stream()
            self.pool = torch.cuda.graph_pool_handle()  # of memory
            self.done = torch.cuda.Event()  # the last graph has run

    def give_up(self, device: torch.device) -> None:
        """Let others record graphs, and draw random numbers, after a failed recording."""
        with suppress(RuntimeError, AttributeError):  # torch (2.11) has not ended it
            torch._C._cuda_endAllocateToPool(device.index, self.pool)
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        generator = torch.cuda.default_generators[device.index]
        generator.graphsafe_set_state(generator.clone_state())


class _OnOneDevice(TorchDispatchMode):
    """Raises for operators that read values of tensors or move them between devices.

    A CUDA graph cannot contain them, and a failed recording leaves torch in a bad state.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        reads = bool(
            {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}
        )
        if func is torch.ops.aten.index.Tensor:  # by numbers, or by a mask
            reads = any(index.dtype in (torch.bool, torch.uint8) for index in tensors[1:])
        if reads:
            raise RuntimeError(f"{func} reads values of a tensor")
        result = func(*args, **(kwargs or {}))
        tensors += [value for value in tree_leaves(result) if isinstance(value, Tensor)]
        # Numbers on the CPU are constants of a graph.
        moves = func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
        tensors = [one for one in tensors if moves or one.dim() or one.device.type != "cpu"]
        devices = {tensor.device.type for tensor in tensors}
        if len(devices) > 1:
            raise RuntimeError(f"{func} uses tensors on {' and '.join(sorted(devices))}")
        return result


@functools.cache
def _on_device(device: torch.device) -> _OnDevice:
    return _OnDevice(device)


def _frozen_weights(clip: Tensor) -> AbstractContextManager:
    if clip.device.type != "cpu":
        return nullcontext()
    from torch._inductor import config

    return config.patch(freezing=True)
