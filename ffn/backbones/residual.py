"""Find the residual branches of a 2-D CNN in the operations of its forward pass.

A residual block computes ``shortcut(x) + branch(x)``. The network runs once on the meta device,
which computes only shapes. The blocks are the additions in this run whose two terms come from one
``x``; names of classes, attributes and layers do not matter. Left out: shortcuts that are
concatenated, as in DenseNet, and branches whose only way is an attention.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

IMAGES = 2  # batch of the run
# Names of torch's operators, without the underscore of in-place ones.
CONVOLUTION = "convolution"
MATMULS = {"mm", "addmm", "bmm", "baddbmm"}
GATES = {"sigmoid", "hardsigmoid", "_softmax"}
SLICES = {"slice", "select", "split", "split_with_sizes"}
NORMS = {"native_batch_norm", "native_layer_norm", "native_group_norm"}
POOLS = {"avg_pool2d", "max_pool2d_with_indices", "_adaptive_avg_pool2d", "upsample_nearest2d"}
SHAPES = {"view", "_unsafe_view", "permute", "transpose", "clone", "_to_copy", "constant_pad_nd"}
# With one feature map among the inputs, these can be part of a shortcut.
LINEAR = {CONVOLUTION, "add", "sub", "mul", "div", *SLICES, *NORMS, *POOLS, *SHAPES}


@dataclass(frozen=True)
class Operation:
    """An operation on feature maps; others, such as those on weights, are not recorded.

    Attributes:
        kind: name of the operator.
        inputs: indices of the operations that computed its feature maps.
        main: the inputs that are not gates, statistics, or weights of an attention.
        ancestors: all operations that it depends on, and itself, as a bit set.
        main_ancestors: those along ``main`` inputs only.
        module: name of the module that runs it.
        is_gate: its values are those of a sigmoid or softmax.
        conv: name of the convolution, if it runs once per image and has weights of its own.
        kernel: largest size of that convolution's kernel.
    """

    kind: str
    inputs: tuple[int, ...]
    main: tuple[int, ...]
    ancestors: int
    main_ancestors: int
    module: str
    is_gate: bool
    conv: str = ""
    kernel: int = 0


@dataclass(frozen=True)
class Residual:
    """An addition of a shortcut and a branch: its index, first convolutions, and operations."""

    index: int
    convs: tuple[int, ...]
    branch: int


def residual_convs(net: nn.Module) -> dict[str, str]:
    """Find the convolutions that read the input of a residual branch.

    A block counts if its shortcut is the identity, or consists of convolutions, norms and poolings
    in parallel to a branch with an activation function, and if the branch has a convolution larger
    than 1 x 1. Of a block inside another one's branch, nothing is returned.

    Args:
        net: maps images (N, C, H, W) to logits; it does not change.

    Returns:
        The name of the block (the module that adds), by name of the convolution. The name is "" for
        a convolution whose weights depend on the image, or that runs on windows or heads.

    Raises:
        RuntimeError: the network does not run on the meta device.
    """
    rgb = (getattr(net, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))
    first = next((m.in_channels for m in net.modules() if isinstance(m, nn.Conv2d)), rgb[0])
    try:
        operations = _record(net, rgb)
    except RuntimeError:  # it may take images of other channels
        if first == rgb[0]:
            raise
        operations = _record(net, (first, *rgb[1:]))
    blocks = _residuals(operations)
    outer = [b for b in blocks if not any(other.branch >> b.index & 1 for other in blocks)]
    return {operations[c].conv: operations[b.index].module for b in outer for c in b.convs}


class _Recorder(TorchDispatchMode):
    """Records the operations on feature maps; ``modules`` has the names of the running modules."""

    def __init__(self, image: Tensor, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.operations = [Operation("image", (), (), 1, 1, "", False)]
        self.producer = {id(image): 0}  # the operation that computed a tensor
        self.owner = {id(tensor): name.rpartition(".")[0] for name, tensor in state.items()}
        self.alive: list[Any] = [image, state]  # an id is unique among living objects only
        self.modules: list[str] = []

    def enter(self, name: str, *_: Any) -> None:
        self.modules.append(name)

    def leave(self, *_: Any) -> None:
        self.modules.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kind = func.overloadpacket.__name__.removesuffix("_")
        if kind in NORMS:  # torch computes their shapes slowly
            result = torch.empty_like(args[0]), args[0].new_empty(0), args[0].new_empty(0)
        else:
            result = func(*args, **(kwargs or {}))
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in tree_iter(result) if isinstance(t, Tensor)]
        self.alive.append(outputs)
        maps = [t for t in given if id(t) in self.producer]
        if maps and outputs:
            self._append(kind, given, maps, outputs)
        else:  # computed from weights, as those of a weight standardisation
            owners = (self.owner[id(t)] for t in given if id(t) in self.owner)
            owner = next(owners, None)
            self.owner.update((id(t), owner) for t in outputs if owner is not None)
        return result

    def _append(
        self, kind: str, given: list[Tensor], maps: list[Tensor], outputs: list[Tensor]
    ) -> None:
        inputs = tuple(self.producer[id(t)] for t in maps)
        main = tuple(self.producer[id(t)] for t in self._main(kind, maps, outputs[0]))
        index, conv, kernel = len(self.operations), "", 0
        if kind == CONVOLUTION and given[0].ndim == 4:
            kernel = max(given[1].shape[2:])
            if len(given[0]) == IMAGES:
                conv = self.owner.get(id(given[1]), "")
        passes = len(maps) == 1 and kind in LINEAR and kind != CONVOLUTION
        is_gate = kind in GATES or (passes and self.operations[inputs[0]].is_gate)
        ancestors = main_ancestors = 1 << index
        for i in inputs:
            ancestors |= self.operations[i].ancestors
        for i in main:
            main_ancestors |= self.operations[i].main_ancestors
        module = self.modules[-1] if self.modules else ""
        self.operations.append(
            Operation(kind, inputs, main, ancestors, main_ancestors, module, is_gate, conv, kernel)
        )
        self.producer.update((id(t), index) for t in outputs)

    def _main(self, kind: str, maps: list[Tensor], output: Tensor) -> list[Tensor]:
        """The feature maps that an operation passes on."""
        if kind == CONVOLUTION:
            return maps[:1]
        if kind in MATMULS or "attention" in kind:
            return maps if len(maps) == 1 else []
        if kind in ("cat", "stack") or (len(maps) == 1 and kind != "expand"):
            return maps
        main = [t for t in maps if t.numel() == output.numel()]
        if kind == "mul":
            main = [t for t in main if not self.operations[self.producer[id(t)]].is_gate] or main
        return main


@torch.inference_mode(False)  # in inference mode, the operators are others
def _record(net: nn.Module, size: tuple[int, int, int]) -> list[Operation]:
    tensors = [*net.parameters(), *net.buffers()]
    net = copy.deepcopy(net, {id(t): torch.empty_like(t, device="meta") for t in tensors}).eval()
    state = dict([*net.named_parameters(), *net.named_buffers()])
    image = torch.empty(IMAGES, *size, device="meta")
    recorder = _Recorder(image, state)
    for name, module in net.named_modules():
        enter = functools.partial(recorder.enter, name)
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(recorder.leave)
    with torch.no_grad(), recorder:
        net(image)
    return recorder.operations


def _residuals(operations: list[Operation]) -> list[Residual]:
    users: dict[int, set[int]] = defaultdict(set)
    for index, operation in enumerate(operations):
        for i in operation.inputs:
            users[i].add(index)

    def is_sum(index: int) -> bool:
        operation = operations[index]
        return operation.kind == "add" and len(set(operation.main)) == 2

    def is_partial(index: int) -> bool:
        """Whether a sum is a term of another sum only."""
        return is_sum(index) and len(users[index]) == 1 and is_sum(*users[index])

    def terms(index: int) -> list[int]:
        inputs = operations[index].inputs
        return [t for i in inputs for t in (terms(i) if is_partial(i) else [i])]

    sums = [i for i in range(len(operations)) if is_sum(i) and not is_partial(i)]
    found = [_residual(operations, index, terms(index)) for index in sums]
    return [block for block in found if block and not _leaks(operations, users, block)]


def _residual(operations: list[Operation], index: int, terms: list[int]) -> Residual | None:
    """The residual block that ends in a sum; of several, the one with the longest branch."""
    best = None
    for term in terms:
        others = [other for other in terms if other != term]
        for x, convs in _shortcut(operations, term):
            from_x = [o for o in others if o != x and operations[o].main_ancestors >> x & 1]
            if not from_x:
                continue
            if convs:  # parallel linear branches are one convolution
                from_x = [o for o in from_x if x not in dict(_shortcut(operations, o))]
            branch = _branch(operations, x, from_x)
            convs = [c for c in _bits(branch) if operations[c].kernel]
            is_longest = best is None or branch.bit_count() > best.branch.bit_count()
            if is_longest and any(operations[c].kernel > 1 for c in convs):
                earlier = sum(1 << c for c in convs)
                first = [c for c in convs if operations[c].main_ancestors & earlier == 1 << c]
                best = Residual(index, tuple(first), branch)
            break
    return best


def _shortcut(operations: list[Operation], index: int) -> Iterator[tuple[int, int]]:
    """Go back from a term through linear operations: each with the convolutions between.

    A slice of channels is not the whole operation before it.
    """
    convs, is_slice = 0, False
    while True:
        if not is_slice:
            yield index, convs
        operation = operations[index]
        if len(operation.inputs) != 1 or operation.kind not in LINEAR:
            return
        if operation.kind == CONVOLUTION:
            convs, is_slice = convs + 1, False
        is_slice = is_slice or operation.kind in SLICES
        (index,) = operation.inputs


def _branch(operations: list[Operation], x: int, ends: list[int]) -> int:
    """The operations between x and the ends of a branch, as a bit set."""
    before = 0
    for end in ends:
        before |= operations[end].main_ancestors
    inside = (i for i in _bits(before) if i != x and operations[i].main_ancestors >> x & 1)
    return sum(1 << i for i in inside)


def _leaks(operations: list[Operation], users: dict[int, set[int]], block: Residual) -> bool:
    """Whether the branch is used outside of the sum, other than in slices of channels."""
    before = operations[block.index].ancestors
    branch = (
        i
        for i in _bits(before)
        if i != block.index and any(operations[i].ancestors >> c & 1 for c in block.convs)
    )
    used = {user for i in branch for user in users[i]}
    return any(not before >> user & 1 and operations[user].kind not in SLICES for user in used)


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
