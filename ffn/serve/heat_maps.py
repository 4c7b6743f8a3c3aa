"""Heat maps of a clip: where a network sees evidence for a class, by Grad-CAM (1610.02391).

With a feature map A, its channels k and positions i in space and time, and the logit y of a class:

    a_k = sum_i dy / dA_ki        (Selvaraju et al., ICCV 2017, eq. 1, without the constant 1 / Z)
    map_i = ReLU(sum_k a_k A_ki)  (eq. 2)

Without 1 / Z, a network that averages its last map and classifies it linearly has the class
activation map, whose mean is the logit without its bias. The maps of several pathways add up before
the ReLU, each interpolated to the size of the clip.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.data import Normalize, Preprocessing
from ffn.export.fuse import plain_copy
from ffn.serve.clips import Clip

# Layouts of a feature map of one clip; a network for images has the frames in the batch.
LAYOUTS = ("t c h w", "t h w c", "1 c t h w", "1 t c h w", "1 t h w c")
COLOR = np.array([255, 96, 0], np.float32)  # of evidence, RGB
OPACITY = 0.75  # of the value 1; that of others is proportional
LAST = "the last feature maps"


@dataclass(frozen=True)
class HeatMap:
    """Where a network sees evidence for a class in a clip.

    Attributes:
        values: float32 (T, H, W) from 0 to 1 on the CPU, in the pixels of the clip. 1 is the
            strongest evidence in the whole clip, so that frames can be compared. All values are 0
            if there is no evidence for the class.
        label: Name of the class.
        layer: Name of the layer whose feature map was weighted, or "the last feature maps".
        clip: The clip.
    """

    values: Tensor
    label: str
    layer: str
    clip: Clip

    def overlay(self) -> np.ndarray:
        """The frames with the heat map over them, uint8 RGB (T, H, W, 3).

        The frames are gray; the higher a value, the more opaque the color over them.
        """
        values = self.values.numpy()
        frames = self.clip.pixels.permute(1, 2, 3, 0).numpy().astype(np.float32)  # (T, H, W, C)
        gray = frames @ np.array([[0.299], [0.587], [0.114]], np.float32)  # ITU-R BT.601
        opacity = OPACITY * values[..., None]
        return np.rint(gray + opacity * (COLOR - gray)).astype(np.uint8)


def compute_heat_map(
    network: nn.Module,
    clip: Clip,
    label: str | None,
    layer: str | None,
    *,
    classes: Sequence[str],
    preprocessing: Preprocessing,
) -> HeatMap:
    """The heat map of a clip; see :meth:`ffn.Predictor.heat_map`.

    The network does not change: a copy of the sub-network runs, in fp32, before it is fused.
    """
    device = next(network.parameters()).device
    if label is not None and label not in classes:
        similar = difflib.get_close_matches(label, classes, n=3) or classes[:3]
        raise ValueError(f"label is {label!r}, no class; similar: {', '.join(similar)}")
    index = None if label is None else list(classes).index(label)
    # Inference tensors, made under torch.inference_mode, have no gradients.
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        pixels = clip.pixels.clone()[None].to(device)  # (1, C, T, H, W)
        x = Normalize(preprocessing)(pixels)
        plain = plain_copy(network, x.shape[2])[0].float().eval().requires_grad_(False)
        maps, logits = grad_cam(plain, x, index, layer)
        values = combine(maps, x.shape[2:]).cpu()
    index = int(logits.argmax()) if index is None else index
    return HeatMap(values, classes[index], layer or LAST, clip)


def grad_cam(
    network: nn.Module, clip: Tensor, label: int | None = None, layer: str | None = None
) -> tuple[list[Tensor], Tensor]:
    """The maps of a class before the ReLU, one for each pathway, and the logits.

    Args:
        network: in eval mode, with parameters that need no gradients. It is not changed.
        clip: (1, C, T, H, W), normalized.
        label: index of the class; None for that of the largest logit.
        layer: name of a layer; None for the last feature maps, of a network that has timm's
            ``forward_features`` and ``forward_head``.

    Returns:
        Maps (t, h, w), and the logits (K,).

    Raises:
        ValueError: there is no such layer, it has no feature map, or the logit does not depend on
            it.
    """
    run = _run_last if layer is None else _run_layer
    features, logits = run(network, clip, layer)
    label = int(logits.argmax()) if label is None else label
    layouts = [_layout(x, clip.shape[2], layer or LAST) for x in features]
    if not logits.requires_grad:
        raise ValueError(f"the logits do not depend on {layer}; name another layer")
    gradients = torch.autograd.grad(logits[label], features)
    maps = []
    for x, gradient, layout in zip(features, gradients, layouts, strict=True):
        x, gradient = (rearrange(y.detach(), f"{layout} -> c t h w") for y in (x, gradient))
        maps.append(torch.einsum("c, c t h w -> t h w", gradient.sum((1, 2, 3)), x))
    return maps, logits.detach()


def combine(maps: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """One map of a clip: the sum, without its negative part, divided by its maximum.

    The maps (t, h, w) of the pathways are interpolated linearly to the size, T, H and W.

    Returns:
        (T, H, W) from 0 to 1; all 0 if no position has evidence for the class.
    """
    size = tuple(size)
    scaled = [F.interpolate(x[None, None], size=size, mode="trilinear")[0, 0] for x in maps]
    total = torch.stack(scaled).sum(0).relu()
    highest = total.max()
    return total / highest if highest > 0 else total


def _run_last(network: nn.Module, clip: Tensor, _: None) -> tuple[list[Tensor], Tensor]:
    """The last feature maps, one for each pathway, and the logits (K,) that depend on them."""
    if not hasattr(network, "forward_features"):
        raise ValueError(
            f"{type(network).__name__} has no forward_features; name a layer with a feature map "
            "(layer=, --layer)"
        )
    with torch.no_grad():
        found = network.forward_features(clip)
    several = isinstance(found, (tuple, list))
    features = [x.detach().requires_grad_() for x in (found if several else [found])]
    with torch.enable_grad():
        given = [x.clone() for x in features]  # the head may work in place
        (logits,) = network.forward_head(type(found)(given) if several else given[0])
    return features, logits


def _run_layer(network: nn.Module, clip: Tensor, name: str) -> tuple[list[Tensor], Tensor]:
    """The feature map of a layer that runs once, and the logits (K,) that depend on it."""
    names = [each for each, _ in network.named_modules(remove_duplicate=False) if each]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3) or names[-3:]
        raise ValueError(f"there is no layer {name!r}; similar: {', '.join(close)}")
    features: list[Tensor] = []

    def cut(_: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor):
            raise ValueError(f"{name} gives a {type(output).__name__}; name one of a feature map")
        features.append(output.detach().requires_grad_())
        return features[-1].clone()  # the next layer may work in place

    handle = network.get_submodule(name).register_forward_hook(cut)
    try:
        with torch.enable_grad():
            (logits,) = network(clip)
    finally:
        handle.remove()
    if len(features) != 1:
        raise ValueError(f"{name} runs {len(features)} times; name a layer that runs once")
    return features, logits


def _layout(x: Tensor, frames: int, name: str) -> str:
    """The layout of a feature map of a clip of square frames.

    Raises:
        ValueError: it has no positions, as tokens.
    """
    for layout in LAYOUTS:
        names = layout.split()
        sizes = dict(zip(names, x.shape, strict=False))
        fits = len(names) == x.ndim and sizes.get("1", 1) == 1
        if fits and sizes["h"] == sizes["w"] > 1 and sizes["t"] <= frames:
            return layout
    raise ValueError(
        f"{name} has the shape {tuple(x.shape)}, without several positions in a frame; name a "
        "layer with a feature map (layer=, --layer)"
    )
