"""Grad-CAM of a clip (Selvaraju et al., ICCV 2017, 1610.02391): positions of evidence for a class.

With the feature map A of a layer, its channels k and positions i in space and time, and the logit y
of a class:

    a_k = sum_i dy / dA_ki        (paper, eq. 1, without the constant 1 / Z)
    map_i = ReLU(sum_k a_k A_ki)  (paper, eq. 2)

Without 1 / Z, a network that averages its last map and classifies it linearly has the class
activation map, whose mean is the logit without its bias. Several last layers, as of a network of
two pathways, add up before the ReLU, each interpolated to the size of the clip.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.nn import functional as F

# Layouts of a feature map of one clip; a network for images has the frames in the batch.
LAYOUTS = ("t c h w", "t h w c", "1 c t h w", "1 t c h w", "1 t h w c")
REMEDY = "name a layer with a feature map (layer=, --layer)"


@dataclass(frozen=True)
class Place:
    """A call of a layer: its name, and how many calls of it come before in a forward pass."""

    name: str
    call: int = 0


def last_maps(network: nn.Module, clip: Tensor) -> tuple[Place, ...]:
    """The layers whose feature maps reach the logits through no other layer's feature map.

    A feature map has more than one position in a frame. A network of one pathway has one such
    layer, its last.

    Args:
        network: in eval mode, with parameters that need no gradients.
        clip: (1, C, T, H, W), normalized.

    Raises:
        ValueError: there is none; or tokens without a known place in the frame come after the last
            feature map, as in vision transformers; or a layer has several last maps.
    """
    outputs: dict[Node, tuple[Place, tuple[int, ...]]] = {}

    def record(place: Place, output: Tensor) -> None:
        if output.grad_fn is not None:
            outputs[output.grad_fn] = place, tuple(output.shape)

    drop = saved_tensors_hooks(lambda _: None, lambda _: None)  # the graph needs no tensors
    with _hooks(network, record), drop, torch.enable_grad():
        logits = network(clip.clone().requires_grad_())
    if logits.grad_fn is None:
        raise ValueError("the logits do not depend on the clip by differentiable operations")

    frames = clip.shape[2]
    places = list(_nearest_maps(logits.grad_fn, outputs, frames))
    if not places:
        raise ValueError("the network has no layer with more than one position per frame")
    repeated = [name for name, times in Counter(p.name for p in places).items() if times > 1]
    if repeated:
        raise ValueError(f"layer {repeated[0]} computes several of the last maps; {REMEDY}")
    return tuple(places)


def named_map(network: nn.Module, clip: Tensor, name: str) -> tuple[Place, ...]:
    """The layer of a name, which runs once in a forward pass.

    Raises:
        ValueError: there is no such layer, or it runs several times or not at all.
    """
    names = [each for each, _ in network.named_modules(remove_duplicate=False) if each]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3) or names[-3:]
        raise ValueError(f"there is no layer {name!r}; similar: {', '.join(close)}")
    calls: list[Place] = []
    with _hooks(network, lambda place, _: calls.append(place), [name]), torch.no_grad():
        network(clip)
    if len(calls) != 1:
        raise ValueError(f"layer {name} returns {len(calls)} tensors; expected one. {REMEDY}")
    return tuple(calls)


def grad_cam(
    network: nn.Module, clip: Tensor, places: Sequence[Place], label: int | None = None
) -> tuple[list[Tensor], Tensor]:
    """The maps of a class at each place, before the ReLU, and the logits.

    Args:
        network: in eval mode, with parameters that need no gradients. It is not changed.
        clip: (1, C, T, H, W), normalized.
        places: see :func:`last_maps`.
        label: index of the class; None for that of the largest logit.

    Returns:
        A map (t, h, w) for each place, and the logits (K,).

    Raises:
        ValueError: a place has no feature map, or the logit does not depend on it.
    """
    leaves: dict[Place, Tensor] = {}

    def cut(place: Place, output: Tensor) -> Tensor | None:
        if place not in places:
            return None
        leaves[place] = output.detach().requires_grad_()
        return leaves[place].clone()  # the next layer may work in place

    with _hooks(network, cut, [place.name for place in places]), torch.enable_grad():
        (logits,) = network(clip)
    label = int(logits.argmax()) if label is None else label
    given = [leaves[place] for place in places]
    layouts = [_layout(tuple(x.shape), clip.shape[2]) for x in given]
    for place, x, layout in zip(places, given, layouts, strict=True):
        if layout is None:
            raise ValueError(
                f"layer {place.name} returns {tuple(x.shape)}, which has no positions; {REMEDY}"
            )
    gradients = [None] * len(given)
    if logits.requires_grad:
        gradients = torch.autograd.grad(logits[label], given, allow_unused=True)
    maps = []
    for place, x, gradient, layout in zip(places, given, gradients, layouts, strict=True):
        if gradient is None:
            raise ValueError(f"the logits do not depend on layer {place.name}; {REMEDY}")
        x, gradient = (rearrange(y.detach(), f"{layout} -> c t h w") for y in (x, gradient))
        maps.append(torch.einsum("c, c t h w -> t h w", gradient.sum((1, 2, 3)), x))
    return maps, logits.detach()


def combine(maps: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """One map of a clip: the sum, without its negative part, divided by its maximum.

    Args:
        maps: (t, h, w) of several places.
        size: T, H and W; each map is interpolated linearly to it.

    Returns:
        (T, H, W) from 0 to 1; all 0 if no position has evidence for the class.
    """
    size = tuple(size)
    scaled = [F.interpolate(x[None, None], size=size, mode="trilinear")[0, 0] for x in maps]
    total = torch.stack(scaled).sum(0).relu()
    highest = total.max()
    return total / highest if highest > 0 else total


def _nearest_maps(
    end: Node, outputs: dict[Node, tuple[Place, tuple[int, ...]]], frames: int
) -> Iterator[Place]:
    """The places of feature maps that a search from the logits backwards meets first."""
    waiting, seen, times = [end], {end}, {frames}
    while waiting:
        node = waiting.pop()
        place, shape = outputs.get(node, (None, ()))
        if place is not None and _layout(shape, frames):
            yield place
            continue
        if len(shape) == 5 and shape[3:] == (1, 1):  # one position per frame
            times.add(shape[2])
        if len(shape) == 3 and max(shape[1:]) > 1 and not times.intersection(shape[1:]):
            raise ValueError(
                f"the logits are computed from the tokens {shape} of {place.name}, whose places in "
                f"the frame are unknown; {REMEDY}"
            )
        following = [each for each, _ in node.next_functions if each is not None]
        waiting += [each for each in following if each not in seen]
        seen.update(following)


def _layout(shape: tuple[int, ...], frames: int) -> str | None:
    """The layout of a feature map of a clip of square frames; None if it is none."""
    for layout in LAYOUTS:
        names = layout.split()
        sizes = dict(zip(names, shape, strict=False))
        fits = len(names) == len(shape) and sizes.get("1", 1) == 1
        if fits and sizes["h"] == sizes["w"] > 1 and sizes["t"] <= frames:
            return layout
    return None


@contextmanager
def _hooks(
    network: nn.Module,
    call: Callable[[Place, Tensor], Tensor | None],
    names: Sequence[str] | None = None,
) -> Iterator[None]:
    """Call a function with each tensor that a layer returns, within a context.

    The function may return another tensor in its place. No names stand for all layers.
    """
    calls: Counter[str] = Counter()

    def hook(name: str) -> Callable[[nn.Module, Any, Any], Tensor | None]:
        def run(_: nn.Module, inputs: Any, output: Any) -> Tensor | None:
            calls[name] += 1
            is_tensor = isinstance(output, Tensor)
            return call(Place(name, calls[name] - 1), output) if is_tensor else None

        return run

    chosen = [name for name, _ in network.named_modules() if name] if names is None else names
    handles = [network.get_submodule(name).register_forward_hook(hook(name)) for name in chosen]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
