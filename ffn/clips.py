"""Check the shape of a clip, and whether a graph lets it vary."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def check_clip(clip: Tensor, channels: int | None = None, frame_dim: int = 2) -> None:
    """Check that a tensor is a batch of clips (B, C, T, H, W).

    Args:
        clip: the tensor.
        channels: C that the network takes, if known. A clip with another C is refused only if its
            dimensions look permuted; the first layer checks C itself.
        frame_dim: the dimension of T; C is checked if it is 2.

    Raises:
        ValueError: it does not have five dimensions, T is 0, or T or W has the size of C.
    """
    if clip.ndim != 5 or clip.shape[frame_dim] < 1:
        raise ValueError(
            f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W), T >= 1. "
            "One clip? Add a batch dimension with clip[None]. Several views? Call the task instead."
        )
    if frame_dim != 2 or channels is None or clip.shape[1] in (3, channels):
        return
    if channels in (clip.shape[2], clip.shape[4]):
        order = "(B, T, C, H, W): pass clip.transpose(1, 2)"
        if clip.shape[2] != channels:
            order = "(B, T, H, W, C): pass clip.movedim(-1, 1)"
        raise ValueError(
            f"clip has {clip.shape[1]} channels {tuple(clip.shape)}; expected (B, C, T, H, W) "
            f"with C = {channels}. It looks like {order}."
        )


def check_sides(clip: Tensor, unit: int, taker: str, *, least: int = 1) -> None:
    """Raise ValueError unless height and width are multiples, ``least`` or more, of a unit."""
    height, width = sides = clip.shape[3:]
    if any(side % unit or side < least * unit for side in sides):
        fitting = " x ".join(str(max(least, round(side / unit)) * unit) for side in sides)
        raise ValueError(
            f"clip is {height} x {width} px; {taker} takes multiples of {unit} from "
            f"{least * unit} up, e.g. {fitting}"
        )


def check_clip_of(network: nn.Module, clip: Tensor, frame_dim: int = 2) -> None:
    """As `check_clip`, where the first convolution of a network of any kind tells C."""
    check_clip(clip, frame_dim=frame_dim)
    features = getattr(network, "num_features", 3)  # a probe takes those of clips, too
    if clip.shape[1] not in (3, features) and 3 in (clip.shape[2], clip.shape[4]):
        layers = (m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Conv3d)))
        first = next(layers, None)
        if first is not None and first.in_channels == 3:
            check_clip(clip, 3, frame_dim)


def is_exporting() -> bool:
    """Whether ``torch.export`` records this forward pass; in torch 2.6, only with strict=False."""
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def varies(size: int | torch.SymInt) -> bool:
    """Whether a size may vary in the graph that ``torch.export`` or a trace records."""
    if not is_exporting():
        return torch.jit.is_tracing()
    symbolic = torch.fx.experimental.symbolic_shapes
    if hasattr(symbolic, "has_static_value"):  # from torch 2.8 on
        return not symbolic.has_static_value(size)
    return isinstance(size, torch.SymInt)
