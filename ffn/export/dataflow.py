"""Record which tensors the calls of a forward pass read and return."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# Calls on a tensor that do not read its values.
_METADATA = {"dim", "element_size", "is_contiguous", "numel", "size", "stride", "__len__"}


@dataclass(eq=False)
class Value:
    """A tensor that a call computed; the tensor itself is not kept. One tensor, one object."""

    ndim: int


@dataclass(eq=False)
class Call:
    """One call of a torch function, by its name.

    Parameters and buffers of the network are tensors, all other tensors are a :class:`Value`.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None


class Dataflow:
    """The calls of one forward pass."""

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self._readers: dict[int, list[Call]] = defaultdict(list)
        self._producer: dict[int, Call] = {}
        for call in calls:
            for key in dict.fromkeys(map(id, _values((call.args, call.kwargs)))):
                self._readers[key].append(call)
            for value in _values(call.output):
                self._producer.setdefault(id(value), call)

    def readers(self, tensor: Tensor | Value) -> list[Call]:
        """The calls that have a tensor among their arguments, in the order in which they ran."""
        return self._readers[id(tensor)]

    def producer(self, tensor: Tensor | Value) -> Call | None:
        """The call that returned a tensor; None for inputs."""
        return self._producer.get(id(tensor))


def record(network: nn.Module, clip: Tensor) -> Dataflow:
    """Run a network without gradients and record the calls of torch functions.

    The last call, "return", reads the output.
    """
    recorder = _Recorder(network)
    with torch.no_grad(), recorder:
        output = network(clip)
    recorder.append("return", (output,), {}, None)
    return Dataflow(recorder.calls)


class _Recorder(TorchFunctionMode):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.state = {id(t) for t in (*network.parameters(), *network.buffers())}
        self.seen: dict[int, tuple[weakref.ref[Tensor], Value]] = {}

    def append(self, name: str, args: tuple, kwargs: dict[str, Any], output: object) -> None:
        args, kwargs, output = pytree.tree_map(self._value, (args, kwargs, output))
        self.calls.append(Call(name, args, kwargs, output))

    def _value(self, x: object) -> object:
        if not isinstance(x, Tensor) or id(x) in self.state:
            return x
        tensor, value = self.seen.get(id(x), (None, None))
        if tensor is None or tensor() is not x:  # an id may have belonged to another tensor
            value = Value(x.ndim)
            self.seen[id(x)] = weakref.ref(x), value
        return value

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        is_metadata = name in _METADATA or (name == "__get__" and not isinstance(output, Tensor))
        if not is_metadata:
            self.append(name, args, kwargs or {}, output)
        return output


def _values(tree: object) -> list[Tensor | Value]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, (Tensor, Value))]
