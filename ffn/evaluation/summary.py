"""``ffn.summary``: a table of a network's stages with shapes, parameters and cost."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, PrivateModules
from ffn.evaluation.cost import count_macs_by_module, count_parameters

Row = tuple[str, str, int, int, int]  # stage, output, parameters, private ones, MACs


def summary(model: nn.Module, frames: int, *, size: int = 224, channels: int = 3) -> str:
    """Describe the stages of a network as a table in plain text.

    The columns are the shape of a stage's output for one clip, its parameters, those that one
    trained count has for itself (of a frame-flexible network), and its multiply-accumulates in
    millions. Nothing is computed, and the model does not change.

    Args:
        model: plain, frame-flexible, extracted or fused.
        frames: T of the clip.
        size: height and width of the clip in pixels.
        channels: C of the clip.

    Raises:
        ValueError: the network does not accept such a size.
    """
    tensors = [*model.parameters(), *model.buffers()]
    model = copy.deepcopy(model, {id(t): torch.empty_like(t, device="meta") for t in tensors})
    network = model.model if isinstance(model, FrameFlexible) else model
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    clip = torch.empty(1, channels, frames, size, size, device="meta", dtype=dtype)
    shapes: dict[str, str] = {}

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        shapes[name] = _shape(output)

    for name, module in network.named_modules():
        module.register_forward_hook(partial(see, name))
    macs = count_macs_by_module(model, network, clip)
    rows = [_row(network, name, shapes, macs) for name in _stages(network, set(shapes), "")]
    rows = [row for row in rows if any(row[2:])]  # without activations, poolings and dropout
    total = ("total", shapes[""], count_parameters(model), _private(network), macs[""])
    kind = type(network).__name__
    if isinstance(model, FrameFlexible):
        counts = ", ".join(map(str, model.trained_frames))
        kind += f", frame-flexible at {counts}; sub-network {model.select(frames)}"
    head = f"{kind}; clip {tuple(clip.shape)}"
    return f"{head}\n{_table([*rows, total], isinstance(model, FrameFlexible))}"


def _row(network: nn.Module, name: str, shapes: dict[str, str], macs: dict[str, int]) -> Row:
    module = network.get_submodule(name)
    parameters = sum(p.numel() for p in module.parameters())
    return name, shapes.get(name, "-"), parameters, _private(module), macs.get(name, 0)


def _stages(module: nn.Module, ran: set[str], prefix: str) -> Iterator[str]:
    """Names of the stages: containers are opened down to sequences of blocks."""
    for name, child in module.named_children():
        full = f"{prefix}{name}"
        if _is_open(child, full in ran):
            yield from _stages(child, ran, f"{full}.")
        else:
            yield full


def _is_open(module: nn.Module, ran: bool) -> bool:
    """Whether a module is a container: it does not run itself, or is a timm network of stages."""
    if isinstance(module, PrivateModules):
        return False
    children = [m for m in module.children() if next(m.parameters(), None) is not None]
    if not ran or hasattr(module, "get_classifier"):
        return bool(children)
    # A sequence of stages, as `blocks` of MobileNet and `stages` of ConvNeXt.
    has_stages = all(
        any(isinstance(m, nn.Sequential) for m in (c, *c.children())) for c in children
    )
    return type(module) is nn.Sequential and len(children) > 1 and has_stages


def _private(module: nn.Module) -> int:
    """Parameters of one trained count in the private modules."""
    sets = [m for m in module.modules() if isinstance(m, PrivateModules)]
    return sum(p.numel() for m in sets for p in next(iter(m.values())).parameters())


def _shape(output: Any) -> str:
    """``2x64x8x14x14``, or several of a tuple."""
    if isinstance(output, Tensor):
        return "x".join(map(str, output.shape))
    return " ".join(map(_shape, output)) if isinstance(output, (tuple, list)) else "-"


def _table(rows: list[Row], is_flexible: bool) -> str:
    lines = [("stage", "output", "parameters", "private per count", "M MACs")]
    lines += [(n, s, f"{p:,}", f"{own:,}", f"{m / 1e6:,.2f}") for n, s, p, own, m in rows]
    stage, output, *numbers = (max(map(len, column)) + 2 for column in zip(*lines, strict=True))
    widths = [f"<{stage}", f"<{output - 2}", *(f">{width}" for width in numbers)]
    kept = [i for i in range(len(widths)) if is_flexible or i != 3]
    return "\n".join("".join(f"{line[i]:{widths[i]}}" for i in kept) for line in lines)
