"""Fold norms and weight alterations into the convolution or linear layer next to them.

With eval statistics, a batch norm is s x + t per channel, s = γ / sqrt(σ² + ε) and t = β - s μ.
After a layer W x + b, it gives s W x + (s b + t). Before a layer, W (s x + t) + b = (W s) x +
(b + W t), if that does not pad with zeros. A weight alteration is the case t = 0.

A fold is made where the calls of forward passes, of clips of several lengths, prove it: the layer's
weight is a parameter that is used once, and nothing else reads the tensor between the two.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from ffn.core import NORMS, WeightAlteration
from ffn.core.convert import alter_input, replace_all
from ffn.export.dataflow import Call, Dataflow
from ffn.export.kernels import has_hooks

_LAYERS = {"conv1d": 1, "conv2d": 2, "conv3d": 3, "linear": 0}  # dimensions after the channels
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Fold(NamedTuple):
    """A norm or weight alteration, and the layers that can contain it: one before, or all after."""

    name: str
    is_before: bool
    layers: tuple[str, ...]


class Folder:
    """Folds the batch norms and weight alterations of a network in place.

    Attributes:
        folded: names of those that are gone, with the names of the layers that they are in.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.folded: dict[str, tuple[str, ...]] = {}

    def fold(self, flows: Sequence[Dataflow]) -> bool:
        """Fold what all recorded forward passes allow; return whether there was anything."""
        self.owners: dict[int, list[tuple[str, nn.Module]]] = defaultdict(list)
        for name, module in self.network.named_modules():
            for part in (module, *module._parameters.values(), *module._buffers.values()):
                self.owners[id(part)].append((name, module))
        first, *others = [self._plan(flow) for flow in flows]
        agreed = [fold for fold in first if all(fold in plan for plan in others)]
        for fold in agreed:
            self._apply(fold)
        return bool(agreed)

    def _plan(self, flow: Dataflow) -> list[Fold]:
        """The folds that a forward pass allows."""
        self.flow = flow
        plans = {"batch_norm": self._plan_norm, "addcmul": self._plan_alteration}
        found = [plans[call.name](call) for call in flow.calls if call.name in plans]
        return [fold for fold in found if fold is not None]

    def _apply(self, fold: Fold) -> None:
        module = self.network.get_submodule(fold.name)
        layers = [self.network.get_submodule(name) for name in fold.layers]
        if isinstance(module, WeightAlteration):
            rest, scale, shift = nn.Identity(), 1 + module.weight.double(), None
        else:
            rest, (scale, shift) = _without_norm(module), _affine(module)
        if fold.is_before:
            _scale_outputs(layers[0], scale, shift)
        else:
            for layer in layers:
                _scale_inputs(layer, scale, shift)
        self._replace(fold, rest)

    def kept(self) -> tuple[str, ...]:
        """Names of the norms and weight alterations that the network has."""
        kinds = (*NORMS, WeightAlteration)
        return tuple(n for n, m in self.network.named_modules() if isinstance(m, kinds))

    def _plan_norm(self, call: Call) -> Fold | None:
        given = inspect.signature(F.batch_norm).bind(*call.args, **call.kwargs)
        given.apply_defaults()
        x, mean, training = (given.arguments[k] for k in ("input", "running_mean", "training"))
        owners = self.owners[id(mean)]
        if training or len(owners) != 1:
            return None
        name, norm = owners[0]
        is_plain = _without_norm(norm) is not None and not has_hooks(norm)
        if not is_plain or len(self.flow.readers(mean)) != 1:
            return None
        producer = self.flow.producer(x)
        before = self._layer(producer)
        # The norm is over dimension 1; of a linear layer's output (B, L, D), these are the tokens.
        is_channel = before and x.ndim - _LAYERS[producer.name] - 1 == 1
        if is_channel and self.flow.readers(x) == [call]:
            return Fold(name, True, (before,))
        after = self._layers_after(call, 1, is_shifted=True)
        return Fold(name, False, after) if after else None

    def _plan_alteration(self, call: Call) -> Fold | None:
        """An alteration calls ``addcmul(x, x, weight.to(dtype).view(shape))``."""
        view = self.flow.producer(call.args[-1]) if call.args else None
        weight = view.args[0] if view and view.args else None
        owners = self.owners[id(weight)]
        if len(owners) != 1 or not isinstance(owners[0][1], WeightAlteration):
            return None
        name, alteration = owners[0]
        if [reader.name for reader in self.flow.readers(weight)] != ["to", "view"]:
            return None  # it runs twice
        readers = self.flow.readers(call.output)
        layer = self._layer(readers[0], call) if len(readers) == 1 else None
        after = self._layers_after(call, alteration.channel_dim, is_shifted=False)
        after = (layer,) if layer else after
        return Fold(name, False, after) if after else None

    def _layer(self, call: Call | None, alteration: Call | None = None) -> str | None:
        """The convolution or linear layer of a call, if its weight is used in no other call.

        An alteration may scale the weight before.
        """
        if call is None or call.name not in _LAYERS:
            return None
        given = _layer_arguments(call)
        weight, bias = alteration.args[0] if alteration else given["weight"], given["bias"]
        owners = self.owners[id(weight)]
        if len(owners) != 1 or self.flow.readers(weight) != [alteration or call]:
            return None
        if bias is not None and self.flow.readers(bias) != [call]:
            return None
        name, layer = owners[0]
        return name if _runs_with(layer, call, weight) and layer.bias is bias else None

    def _layers_after(self, call: Call, dim: int, *, is_shifted: bool) -> tuple[str, ...]:
        """The layers that read the output of a call, if all that reads it are layers.

        ``dim`` is that of the channels in the output; a shift must not meet zero padding.
        """
        names = []
        for reader in self.flow.readers(call.output):
            layer = self._layer(reader)
            given = _layer_arguments(reader)
            if layer is None or given["input"] is not call.output:
                return ()
            spatial = _LAYERS[reader.name]
            padding = given.get("padding", 0)
            is_padded = padding == "same" or (padding != "valid" and np.any(padding))
            is_channel = dim % call.output.ndim == call.output.ndim - spatial - 1
            if not is_channel or (is_shifted and is_padded):
                return ()
            names.append(layer)
        return tuple(names)

    def _replace(self, fold: Fold, rest: nn.Module) -> None:
        """Replace a folded module by what remains of it."""
        name, self.folded[fold.name] = fold.name, fold.layers
        parent = self.network.get_submodule(name.rpartition(".")[0])
        hooks = [key for key, hook in parent._forward_pre_hooks.items() if hook is alter_input]
        if not hooks:
            replace_all(self.network, {id(self.network.get_submodule(name)): rest})
            return
        del parent.alteration
        for key in hooks:
            del parent._forward_pre_hooks[key], parent._forward_pre_hooks_with_kwargs[key]


def _layer_arguments(call: Call) -> dict[str, Any]:
    """Input, weight, bias, and of a convolution its options, of a call of a layer's function."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    return {"bias": None} | dict(zip(names, call.args, strict=False)) | call.kwargs


def _runs_with(layer: nn.Module, call: Call, weight: Tensor) -> bool:
    """Whether a call is that of a layer of torch, whose weight and bias a fold may change.

    Other modules may call a function with a weight of their own, and with any bias or groups.
    """
    is_known = isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)) and layer.weight is weight
    return is_known and getattr(layer, "groups", 1) == _layer_arguments(call).get("groups", 1)


def _without_norm(norm: nn.Module) -> nn.Module | None:
    """What a norm layer does after the batch norm: nothing, or the activation of a timm layer."""
    if type(norm) in _BATCH_NORMS:
        return nn.Identity()
    if isinstance(norm, _BATCH_NORMS) and {*norm._modules} == {"drop", "act"}:  # BatchNormAct2d
        return nn.Sequential(norm.drop, norm.act)
    return None


def _affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Scale and shift per channel of a batch norm with eval statistics, in float64."""
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    scale = (variance + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.detach().double()
    shift = -mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias.detach().double()


def _scale_outputs(layer: nn.Module, scale: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach().double()
    bias = 0 if layer.bias is None else layer.bias.detach().double()
    _set(layer, weight * scale.view(-1, *[1] * (weight.ndim - 1)), scale * bias + shift)


def _scale_inputs(layer: nn.Module, scale: Tensor, shift: Tensor | None) -> None:
    weight = layer.weight.detach().double()
    grouped = weight.unflatten(0, (getattr(layer, "groups", 1), -1))  # (groups, out, in, ...)
    per_input = (len(grouped), 1, -1, *[1] * (weight.ndim - 2))
    bias = None if layer.bias is None else layer.bias.detach().double()
    if shift is not None:
        added = (grouped * shift.view(per_input)).flatten(2).sum(2).flatten()
        bias = added if bias is None else bias + added
    _set(layer, (grouped * scale.view(per_input)).flatten(0, 1), bias)


def _set(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight.data = weight.to(layer.weight.dtype)
    if bias is not None:
        layer.bias = nn.Parameter(bias.to(layer.weight.dtype), requires_grad=False)
