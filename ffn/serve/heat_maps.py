"""Heat maps of a clip: where a network sees evidence for a class, by Grad-CAM."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, extract
from ffn.data import Normalize, Preprocessing
from ffn.labels import LabelKind
from ffn.serve.clips import Clip
from ffn.serve.grad_cam import Place, combine, grad_cam, last_maps, named_map
from ffn.serve.overlays import overlay


@dataclass(frozen=True)
class HeatMap:
    """Where a network sees evidence for a class in a clip.

    Attributes:
        values: float32 (T, H, W) from 0 to 1 on the CPU, in the pixels of the clip. 1 is the
            strongest evidence in the whole clip, so that frames can be compared. All values are 0
            if there is no evidence for the class.
        label: Name of the class.
        probability: Of the class, by the network in fp32 before it is fused.
        layers: Names of the layers whose feature maps were weighted.
        grid: Positions (t, h, w) of the first layer's feature map.
        clip: The clip.
        preprocessing: Of the network, which says what part of the video's frames the clip shows.
    """

    values: Tensor
    label: str
    probability: float
    layers: tuple[str, ...]
    grid: tuple[int, int, int]
    clip: Clip
    preprocessing: Preprocessing

    def overlay(self) -> np.ndarray:
        """The frames of the clip with the heat map over them, uint8 RGB (T, H, W, 3)."""
        return overlay(self.clip.pixels.permute(1, 2, 3, 0).numpy(), self.values.numpy())


class HeatMaps:
    """Computes heat maps of the clips of a network.

    Several threads may call it: each call has a copy of the sub-network, in fp32, before it is
    fused. The network and its gradients do not change.

    Args:
        model: in eval mode, frame-flexible or plain.
        preprocessing: of the network.
        classes: K names.
        labels: kind of the labels.
        device: of the network.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        preprocessing: Preprocessing,
        classes: Sequence[str],
        labels: LabelKind,
        device: torch.device,
    ) -> None:
        self._model, self._labels = model, labels
        self._preprocessing, self._normalize = preprocessing, Normalize(preprocessing)
        self._classes, self._device = tuple(classes), device
        self._last_maps: dict[tuple[int, ...], tuple[Place, ...]] = {}  # by the shape of the clip

    def __call__(self, clip: Clip, label: str | None = None, layer: str | None = None) -> HeatMap:
        """The heat map of a clip.

        The first call for a shape of clips finds the last feature maps, which takes a forward pass.

        Args:
            clip: that was read.
            label: name of a class; None for the most probable.
            layer: name of a layer; None for the last feature maps.

        Raises:
            ValueError: no such class; or the network has no suitable layer, or not this one.
        """
        index = None if label is None else find_class(label, self._classes)
        # Inference tensors, made under torch.inference_mode, have no gradients.
        with torch.inference_mode(False), torch.autocast(self._device.type, enabled=False):
            x = self._normalize(clip.pixels.clone()[None].to(self._device))  # (1, C, T, H, W)
            network = self._network(x.shape[2])
            places = self._places(network, x, layer)
            maps, logits = grad_cam(network, x, places, index)
            values = combine(maps, x.shape[2:]).cpu()
        index = int(logits.argmax()) if index is None else index
        return HeatMap(
            values=values,
            label=self._classes[index],
            probability=float(self._labels.probabilities(logits)[index]),
            layers=tuple(place.name for place in places),
            grid=tuple(maps[0].shape),
            clip=clip,
            preprocessing=self._preprocessing,
        )

    def _network(self, frames: int) -> nn.Module:
        """A plain copy of the network for a number of frames, without gradients of its weights."""
        model = self._model
        flexible = isinstance(model, FrameFlexible)
        network = extract(model, model.select(frames)) if flexible else copy.deepcopy(model)
        return network.float().eval().requires_grad_(False)

    def _places(self, network: nn.Module, x: Tensor, layer: str | None) -> tuple[Place, ...]:
        if layer is not None:
            return named_map(network, x, layer)
        shape = tuple(x.shape)
        if shape not in self._last_maps:
            self._last_maps[shape] = last_maps(network, x)
        return self._last_maps[shape]


def find_class(label: str, classes: Sequence[str]) -> int:
    """The index of a class name.

    Raises:
        ValueError: no class has this name.
    """
    if label in classes:
        return list(classes).index(label)
    close = difflib.get_close_matches(label, classes, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"e.g. {', '.join(classes[:3])}"
    raise ValueError(f"label is {label!r}, none of the {len(classes)} classes; {hint}")
