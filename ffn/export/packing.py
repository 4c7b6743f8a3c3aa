"""Run a network with the fused operators of oneDNN, on a CPU, or of cuDNN.

On a CPU, torch's convolutions reorder their weights in each call. On all devices, activations and
sums of shortcuts are passes over the features of their own, which these libraries compute with the
convolution.
"""

from __future__ import annotations

import inspect
import operator
import platform
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn

from ffn.conv3d import Conv2d
from ffn.devices import has_bf16
from ffn.export.kernels import OverFrames, OverTime, has_hooks
from ffn.export.packed_layers import (
    AfterShift,
    CudnnConv2d,
    PackedConv2d,
    PackedLayer,
    PackedLinear,
    PackedSum,
    PackedWeight,
)
from ffn.export.windows import ConvOverWindows, WindowWeights, fits_windows

DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16, torch.float16)}
PACKED = (PackedLayer, PackedSum, AfterShift)
CONV2D = (nn.Conv2d, Conv2d)
SUMS = (operator.add, operator.iadd, torch.add)


def can_pack(dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> bool:
    """Whether torch and a device have the operators.

    Args:
        dtype: of the network: fp32 or bf16 on a CPU, bf16 or fp16 on CUDA.
        device: "cpu", "cuda" or another type.
    """
    if device != "cpu":
        known = (
            device == "cuda" and torch.version.hip is None and torch.backends.cudnn.is_available()
        )
        return known and dtype in DTYPES["cuda"]
    operators = ("_convolution_pointwise", "_linear_pointwise", "_get_mkldnn_serialized_md")
    operators += ("_reorder_convolution_weight", "_reorder_linear_weight")
    if not torch.backends.mkldnn.is_available() or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in operators):
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and has_bf16())


@torch.inference_mode(False)  # tensors of inference mode could not be used outside of it
@torch.no_grad()
def pack(network: nn.Module) -> nn.Module:
    """Replace the convolutions and linear layers of a network by packed ones, in place.

    An activation or a sum that is the only reader of a layer's output is computed with it, and a
    sum may be written over a shortcut that nothing reads any more. To find them, the forward of
    each module is traced, in which its children are calls; a module that cannot be traced keeps
    its operators, and so does one that reads a clip's length, which a trace would fix. Layers with
    hooks stay. The network must not be changed or moved afterwards. A trace cannot see everything
    that a forward may do: compare the outputs with those of a copy that is not packed, as
    :class:`ffn.export.networks.Networks` does.

    Args:
        network: fused, in fp32 or bf16 on a CPU, or in bf16 or fp16 on CUDA, in eval mode. Layers
            of other precisions stay, and on CUDA linear layers.

    Returns:
        The network.
    """
    traced = {module: _pack_with_readers(module) for module in list(network.modules())}
    blocks = {module: block for module, block in traced.items() if block is not None}
    for name, module in list(network.named_modules()):
        if _is_packable(module):
            network.set_submodule(name, _packed(module, _pack_weights(module)))
    for module in network.modules():
        if type(module).forward is nn.Sequential.forward and "forward" not in vars(module):
            _reuse_inputs(module, blocks)
    return network


def is_packed(network: nn.Module) -> bool:
    """Whether a network has packed layers, whose weights cannot be copied to other formats."""
    return any(isinstance(module, PackedLayer) for module in network.modules())


class _Tracer(fx.Tracer):
    """Records calls of children and of functions.

    ``fx.Tracer.trace`` replaces methods of ``nn.Module`` while it runs, for all threads of the
    process. Here the forward of one module runs on a stand-in that has recorders as children.

    Args:
        module: whose forward is traced.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.root, self.graph, self.tensor_attrs = module, fx.Graph(), {}

    def create_arg(self, a: Any) -> Any:
        own = (*self.root.parameters(recurse=False), *self.root.buffers(recurse=False))
        if isinstance(a, Tensor) and all(a is not tensor for tensor in own):
            raise fx.proxy.TraceError("a tensor that is neither parameter nor buffer")
        return super().create_arg(a)

    def run(self) -> int:
        """Trace the forward; the number of its arguments, which are those without a default."""
        forward = type(self.root).forward
        names = []
        for name, one in list(inspect.signature(forward).parameters.items())[1:]:
            if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD:
                names.append(name)
            elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
                raise fx.proxy.TraceError(f"the argument {name}")
        given = [self.create_proxy("placeholder", name, (), {}) for name in names]
        stand_in = self._stand_in(self.root, "")
        before = _state(stand_in)
        returned = forward(stand_in, *given)
        after = _state(stand_in)
        if before.keys() != after.keys() or any(before[k] is not after[k] for k in before):
            raise fx.proxy.TraceError("the forward sets an attribute")
        self.graph.output(self.create_arg(returned))
        return len(names)

    def _stand_in(self, module: nn.Module, prefix: str) -> nn.Module:
        """A copy of a module, or of a list of modules, whose children are recorders."""
        stand_in = object.__new__(type(module))
        stand_in.__dict__.update(module.__dict__)
        for kind in ("_parameters", "_buffers"):
            stand_in.__dict__[kind] = dict(module.__dict__[kind])
        stand_in.__dict__["_modules"] = {
            name: self._recorder(child, f"{prefix}{name}")
            for name, child in module._modules.items()
        }
        return stand_in

    def _recorder(self, child: nn.Module | None, name: str) -> nn.Module | _Recorder | None:
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            return self._stand_in(child, f"{name}.")
        return None if child is None else _Recorder(child, name, self)


class _Recorder:
    """Stands for a child: its call is recorded, and its settings can be read."""

    def __init__(self, module: nn.Module, name: str, tracer: _Tracer) -> None:
        self.__dict__.update(_module=module, _name=name, _tracer=tracer)

    @property
    def __class__(self) -> type:  # for isinstance
        return type(self._module)

    def __call__(self, *given: Any, **more: Any) -> fx.Proxy:
        return self._tracer.create_proxy("call_module", self._name, given, more)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if value is not None and not isinstance(value, (bool, int, float, str)):
            raise fx.proxy.TraceError(f"{self._name}.{name}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        raise fx.proxy.TraceError(f"the forward sets {self._name}.{name}")


def _state(module: nn.Module) -> dict[str, Any]:
    """All attributes, parameters and buffers of a module, by name."""
    state = dict(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        state |= {f"{kind}.{name}": value for name, value in state[kind].items()}
    return state


@dataclass(frozen=True)
class _Block:
    """A module whose forward was traced.

    Attributes:
        returns_new: its output is a tensor that nothing else holds.
        over: its forward for an input that nothing else holds, over which it writes its output;
            None if its output is no sum with its input.
    """

    returns_new: bool
    over: Callable[[Tensor], Tensor] | None


def _pack_with_readers(module: nn.Module) -> _Block | None:
    """Pack the children of a module, and give it a forward in which they do the work of readers."""
    traced = _trace(module)
    if traced is None:
        return None
    graph, taken = traced
    calls = [node for node in graph.nodes if node.op == "call_module"]
    layers = {node.target: module.get_submodule(node.target) for node in calls}
    called = [node for node in calls if _is_packable(layers[node.target]) and not node.kwargs]
    if len({node.target for node in called}) < len(called):
        return None  # a layer that is called twice
    sums = {}
    for node in called:
        layer = layers[node.target]
        weights = _pack_weights(layer)
        last, other, activation, pool = _readers(node, module)
        name = f"packed_{node.target.replace('.', '_')}"
        packed = _packed(layer, weights, activation, adds=other is not None, pool=pool)
        module.add_module(name, packed)
        with graph.inserting_after(last):
            new = graph.call_module(name, (*node.args, *([] if other is None else [other])))
        last.replace_all_uses_with(new)
        while last is not node:  # backwards: activation, sum, identities, layer
            before = next(arg for arg in last.args if arg is not other)
            graph.erase_node(last)
            last = before
        graph.erase_node(node)
        module.set_submodule(node.target, _packed(layer, weights))  # for other methods
        if other is not None and isinstance(weights[0], PackedWeight):
            sums[new] = layer, weights, activation
    over = _overwrite(module, graph, sums)
    _set_forward(module, fx.GraphModule(module, graph, type(module).__name__).forward, taken)
    returned = next(iter(reversed(graph.nodes))).args[0]
    is_new = isinstance(returned, fx.Node) and _returns_new(returned, module)
    return _Block(is_new, over if taken == 1 else None)


def _trace(module: nn.Module) -> tuple[fx.Graph, int] | None:
    """The graph of a forward that calls packable layers, and the number of its arguments."""
    if isinstance(module, (OverFrames, OverTime, nn.ModuleList, nn.ModuleDict)):
        return None
    if not any(_is_packable(child) for child in _called_directly(module)):
        return None
    if any(isinstance(value, threading.local) for value in vars(module).values()):
        return None  # it reads the length of the present clip, which its trace would fix
    if "forward" in vars(module):
        return None  # the forward of its class is not what runs
    tracer = _Tracer(module)
    try:
        taken = tracer.run()
    except Exception:  # a forward may fail in many ways without values
        return None
    return tracer.graph, taken


def _set_forward(module: nn.Module, traced: Callable[..., Any], taken: int) -> None:
    """Let a module run a traced forward where it is called as it was traced."""
    original = module.forward

    def forward(*given: Any, **more: Any) -> Any:
        return original(*given, **more) if more or len(given) != taken else traced(*given)

    object.__setattr__(module, "forward", forward)  # other methods stay


def _overwrite(
    module: nn.Module, graph: fx.Graph, sums: dict[fx.Node, tuple]
) -> Callable[[Tensor], Tensor] | None:
    """Write sums over tensors that nothing reads afterwards.

    Args:
        module: whose forward the graph is.
        graph: changed.
        sums: calls of packed layers that add, with the arguments of `_packed`.

    Returns:
        A forward that also writes over the input, which must be for it alone; None if it cannot.
    """
    names = {}  # of the layers that write over the input, by the sums that are there without them
    for node, given in sums.items():
        source = _source(node.args[1], module)
        is_input = source.op == "placeholder"
        if (is_input or _returns_new(source, module)) and _is_last_reader(node, source, module):
            name = f"{node.target}_over"
            module.add_module(name, _packed(*given, adds=True, overwrites=True))
            if is_input:
                names[node] = name
            else:
                node.target = name
    if not names:
        return None
    over = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    over.output(over.graph_copy(graph, copies))
    for node, name in names.items():
        copies[node].target = name
    return fx.GraphModule(module, over, type(module).__name__).forward


def _is_last_reader(node: fx.Node, source: fx.Node, module: nn.Module) -> bool:
    """Whether a sum is the last that reads a tensor, and does so for its second summand only."""
    order = {each: number for number, each in enumerate(node.graph.nodes)}
    others = [reader for reader in _all_readers(source, module) if reader is not node]
    # Readers that return views would be other names of the tensor.
    are_before = all(_returns_new(one, module) and order[one] < order[node] for one in others)
    return are_before and _source(node.args[0], module) is not source


def _source(node: fx.Node, module: nn.Module) -> fx.Node:
    """What a chain of identities starts with."""
    while _is_identity(node, module):
        node = node.args[0]
    return node


def _all_readers(node: fx.Node, module: nn.Module) -> Iterator[fx.Node]:
    """The readers of a tensor, also through identities."""
    for reader in node.users:
        yield from _all_readers(reader, module) if _is_identity(reader, module) else [reader]


def _is_identity(node: fx.Node, module: nn.Module) -> bool:
    if node.op != "call_module":
        return False
    called = module.get_submodule(node.target)
    return type(called) is nn.Identity and not has_hooks(called)


def _reuse_inputs(chain: nn.Sequential, blocks: dict[nn.Module, _Block]) -> None:
    """Let blocks of a chain write over the outputs of the blocks before them."""
    children = list(chain)  # chain.children() has each module once
    steps = []
    for before, child in pairwise(children):
        is_new = before in blocks and blocks[before].returns_new
        steps.append((before, child, blocks[child].over if is_new and child in blocks else None))
    if all(over is None for _, _, over in steps):
        return

    def forward(input: Tensor) -> Tensor:
        input = children[0](input)
        for before, child, over in steps:
            is_over = over is not None and not has_hooks(before) and not has_hooks(child)
            input = over(input) if is_over else child(input)
        return input

    object.__setattr__(chain, "forward", forward)


def _returns_new(node: fx.Node, module: nn.Module) -> bool:
    """Whether the output of a call is a tensor that nothing else holds."""
    return node.op == "call_module" and _makes_tensor(module.get_submodule(node.target))


def _makes_tensor(module: nn.Module) -> bool:
    """Whether a module is a convolution or linear layer, or a chain that ends with one."""
    if has_hooks(module):
        return False
    if type(module).forward is nn.Sequential.forward:
        layers = [child for child in module if type(child) is not nn.Identity or has_hooks(child)]
        return bool(layers) and _makes_tensor(layers[-1])
    if isinstance(module, (OverFrames, OverTime)):
        module = module.layer
    return _is_packable(module) or isinstance(module, (*PACKED, nn.Conv3d))


def _called_directly(module: nn.Module) -> Iterator[nn.Module]:
    """The children of a module, and those of its lists."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else (child,)


def _readers(
    layer: fx.Node, module: nn.Module
) -> tuple[fx.Node, fx.Node | None, str, nn.MaxPool2d | None]:
    """The last call that a packed layer can compute, what it adds, its activation and pooling."""
    kind = type(module.get_submodule(layer.target))
    last, other = _after_identities(layer, module), None
    reader = _only_reader(last)
    can_add = not issubclass(kind, (nn.Linear, nn.Conv3d))
    if can_add and reader is not None and reader.target in SUMS and not reader.kwargs:
        first, second = reader.args
        candidate = second if first is last else first
        if isinstance(candidate, fx.Node) and candidate is not last:
            last, other = _after_identities(reader, module), candidate
            reader = _only_reader(last)
    activation = "none"
    if reader is not None and reader.op == "call_module":
        activation = _activation(module.get_submodule(reader.target))
        if activation != "none":
            last = reader
    pool = None
    if issubclass(kind, nn.Conv3d):
        last, pool = _pooling(last, module)
    if _is_changed(layer, last, module):
        return layer, None, "none", None
    return last, other, activation, pool


def _pooling(node: fx.Node, module: nn.Module) -> tuple[fx.Node, nn.MaxPool2d | None]:
    """The pooling of each frame that reads a tensor alone, as its layer; else the tensor."""
    reader = _only_reader(_after_identities(node, module))
    if reader is None or reader.op != "call_module":
        return node, None
    pool = module.get_submodule(reader.target)
    fits = isinstance(pool, OverFrames) and type(pool.layer) is nn.MaxPool2d
    if not fits or has_hooks(pool) or has_hooks(pool.layer):
        return node, None
    return reader, pool.layer


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _after_identities(node: fx.Node, module: nn.Module) -> fx.Node:
    """The last of a chain of identities that start at a node."""
    while (reader := _only_reader(node)) is not None and _is_identity(reader, module):
        node = reader
    return node


def _is_changed(layer: fx.Node, last: fx.Node, module: nn.Module) -> bool:
    """Whether the input of a layer may be changed between its call and the last one."""
    node = layer.next
    while node is not last.next and node.op != "root":
        reads = node.args and node.args[0] in layer.args
        if reads and (node.op != "call_module" or _changes(module.get_submodule(node.target))):
            return True
        node = node.next
    return False


def _changes(module: nn.Module) -> bool:
    return any(getattr(part, "inplace", False) for part in module.modules())


def _activation(module: nn.Module) -> str:
    """oneDNN's name of an activation; "none" if it is none that is known."""
    if has_hooks(module):
        return "none"
    if type(module) is nn.ReLU:
        return "relu"
    return "gelu" if type(module) is nn.GELU and module.approximate == "none" else "none"


def _shifts(layer: nn.Module) -> bool:
    """Whether a layer is ffn's convolution of a temporal shift."""
    return isinstance(layer, nn.Conv2d) and hasattr(layer, "shift") and hasattr(layer, "site")


def _is_packable(layer: nn.Module) -> bool:
    if has_hooks(layer):
        return False
    if isinstance(layer, (OverFrames, OverTime)):
        return type(layer.layer) in CONV2D and _is_packable(layer.layer)
    if fits_windows(layer):  # in fp32, they are as fast in 3-D
        return layer.weight.dtype is torch.bfloat16 and _device(layer) == "cpu"
    if _shifts(layer):
        right = type(layer.site) is nn.Identity
    else:
        right = type(layer) in (*CONV2D, nn.Linear)
    if not right:
        return False
    device = _device(layer)
    if layer.weight.dtype not in DTYPES.get(device, ()):
        return False
    if isinstance(layer, nn.Linear):
        return device == "cpu"
    if device == "cuda" and layer.groups > 1:
        return False
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _device(layer: nn.Module) -> str:
    return layer.weight.device.type


def _pack_weights(layer: nn.Module) -> tuple:
    """The packed weight and the bias."""
    if isinstance(layer, (OverFrames, OverTime)):
        return _pack_weights(layer.layer)
    with torch.no_grad():
        if isinstance(layer, nn.Linear):
            return torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach()), layer.bias
        if isinstance(layer, nn.Conv3d):
            return (WindowWeights(layer),)
        # Dilation of a kernel of one pixel is for torch's own choice of kernels.
        dilation = (1, 1) if layer.kernel_size == (1, 1) else layer.dilation
        options = list(layer.padding), list(layer.stride), list(dilation), layer.groups
        if _device(layer) == "cuda":
            weight = layer.weight.detach().contiguous(memory_format=torch.channels_last)
            return weight, layer.bias, options
        return PackedWeight(layer.weight.detach(), options), layer.bias


def _packed(
    layer: nn.Module,
    weights: tuple,
    activation: str = "none",
    *,
    adds: bool = False,
    overwrites: bool = False,
    pool: nn.MaxPool2d | None = None,
) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return PackedLinear(weights, activation, layer.out_features)
    if isinstance(layer, nn.Conv3d):
        return ConvOverWindows(*weights, activation, pool)
    is_packed = isinstance(weights[0], PackedWeight)
    conv: nn.Module = (
        PackedConv2d(weights, activation, adds=adds, overwrites=overwrites)
        if is_packed
        else CudnnConv2d(*weights, activation)
    )
    if _shifts(layer):
        layer.weight = None  # packed; only its shift is used from here on
        conv = AfterShift(layer.shift, conv)
    elif isinstance(layer, (OverFrames, OverTime)):
        conv = type(layer)(conv)
    return PackedSum(conv, _packed(layer, weights), activation) if adds else conv
