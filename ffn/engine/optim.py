"""Parameter groups, learning-rate schedule, and moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from timm.models import group_parameters
from timm.utils import ModelEmaV3
from torch import nn

from ffn.core import NORMS, PrivateModules


def tsm_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """TSM's parameter groups: a faster head, faster biases, no decay on biases and norms.

    Head weight: lr x5. Head bias: lr x10, no decay. Other biases: lr x2, no decay. Norms: no decay.
    All others, alterations included: lr x1 with decay. The head is the last linear layer, with all
    of its copies if it is private.

    Raises:
        ValueError: the model has no linear layer.
    """
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ValueError("optim.groups=tsm needs a linear classifier; use optim.groups=standard")
    private = [m for m in model.modules() if isinstance(m, PrivateModules)]
    copies = next((list(m.values()) for m in private if linear[-1] in m.values()), linear[-1:])
    weights, biases = ({id(getattr(m, name)) for m in copies} for name in ("weight", "bias"))
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    rules: dict[str, dict[str, Any]] = {
        "weights": {"lr_scale": 1.0, "weight_decay": weight_decay},
        "biases": {"lr_scale": 2.0, "weight_decay": 0.0},
        "norms": {"lr_scale": 1.0, "weight_decay": 0.0},
        "head weight": {"lr_scale": 5.0, "weight_decay": weight_decay},
        "head bias": {"lr_scale": 10.0, "weight_decay": 0.0},
    }
    groups = {name: {"params": [], "name": name, **rule} for name, rule in rules.items()}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in weights:
            kind = "head weight"
        elif id(parameter) in biases:
            kind = "head bias"
        elif id(parameter) in norms:
            kind = "norms"
        else:
            kind = "biases" if name.endswith("bias") else "weights"
        groups[kind]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def standard_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """One learning rate; tensors of fewer than two dimensions have no decay (as in timm)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for p in trained if p.ndim >= 2],
            "name": "weights",
            "weight_decay": weight_decay,
        },
        {"params": [p for p in trained if p.ndim < 2], "name": "vectors", "weight_decay": 0.0},
    ]
    return [{"lr_scale": 1.0, **group} for group in groups if group["params"]]


def decay_layers(
    groups: list[dict[str, Any]], model: nn.Module, decay: float
) -> list[dict[str, Any]]:
    """Layer-wise learning-rate decay: lower rates towards the input.

    Multiplies a parameter's ``lr_scale`` by ``decay ** (depth - layer)``; the head keeps its rate
    (BEiT, 2106.08254, appendix; timm's ``param_groups_layer_decay``). :func:`layer_numbers` defines
    the layers.

    Args:
        groups: as :func:`tsm_groups` or :func:`standard_groups` returned them.
        model: the model with these parameters.
        decay: above 0, at most 1; 1 returns the groups unchanged.

    Returns:
        A group for each given group and layer, named "weights, layer 3 of 9".

    Raises:
        ValueError: ``decay`` is out of range.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}; expected above 0, at most 1, e.g. 0.75; 1 is off")
    if decay == 1:
        return groups
    numbers = layer_numbers(model)
    layer_of = {id(p): numbers[name] for name, p in model.named_parameters()}
    depth = max(numbers.values())
    split: list[dict[str, Any]] = []
    for group in groups:
        for layer in range(depth + 1):
            parameters = [p for p in group["params"] if layer_of[id(p)] == layer]
            if parameters:
                own = {
                    "params": parameters,
                    "name": f"{group['name']}, layer {layer} of {depth}",
                    "lr_scale": group["lr_scale"] * decay ** (depth - layer),
                }
                split.append({**group, **own})
    return split


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The layer of every parameter, counted in residual blocks from the input.

    The stem has number 0, each block the next number, and the head the last. Models with a
    ``group_matcher``, as all of timm's, name the parameters of stem and blocks; all others belong
    to the head. In other models the layers are the modules in order of definition, with sequences
    expanded. A norm belongs to the layer before it.

    Returns:
        Numbers by the names of ``model.named_parameters()``.
    """
    for prefix, module in model.named_modules():
        if hasattr(module, "group_matcher"):
            matched = group_parameters(module, module.group_matcher(coarse=False), reverse=True)
            head = (
                max(matched.values()) + 1
            )  # for parameters outside the network with a group_matcher
            start = f"{prefix}." if prefix else ""
            numbers = {f"{start}{name}": number for name, number in matched.items()}
            return {name: numbers.get(name, head) for name, _ in model.named_parameters()}

    inner = model
    while len(children := _children(inner)) == 1:  # wrappers
        inner = children[0]
    numbers, layer = {}, -1
    for part in _parts(inner):
        layer += not _is_norm(part)
        numbers.update({id(p): max(0, layer) for p in part.parameters()})
    return {name: numbers.get(id(p), 0) for name, p in model.named_parameters()}


def _children(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if next(child.parameters(), None) is not None]


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Modules with parameters, in order of definition; sequences of modules are opened."""
    for child in _children(module):
        if type(child) in (nn.Sequential, nn.ModuleList):
            yield from _parts(child)
        else:
            yield child


def _is_norm(module: nn.Module) -> bool:
    copies = module.values() if isinstance(module, PrivateModules) else [module]
    return all(isinstance(copy, NORMS) for copy in copies)


def scaled_lr(lr: float, batch_size: int, base_batch_size: int | None) -> float:
    """The learning rate for another batch size: linear scaling (Goyal et al. 2017, 1706.02677).

    They verified the rule for SGD with warm-up, up to batches of 8192 images.

    Args:
        lr: rate for ``base_batch_size`` samples per step.
        batch_size: samples per step, over all processes and micro-batches.
        base_batch_size: batch size that ``lr`` belongs to; None returns ``lr``.

    Example:
        >>> scaled_lr(0.01, 256, 64)
        0.04

    Raises:
        ValueError: a batch size below 1.
    """
    if base_batch_size is None:
        return lr
    if batch_size < 1 or base_batch_size < 1:
        raise ValueError(
            f"batch_size is {batch_size}, base_batch_size {base_batch_size}; expected 1 or more "
            "of each"
        )
    return lr * batch_size / base_batch_size


def learning_rate(
    epoch: float,
    *,
    lr: float,
    epochs: int,
    schedule: str,
    milestones: list[float],
    gamma: float,
    final_lr: float,
    warmup_epochs: float,
) -> float:
    """Learning rate at a point of training.

    Args:
        epoch: epochs done so far, with fraction.
        lr: rate after warm-up.
        epochs: length of training.
        schedule: "step" multiplies by ``gamma`` at each of ``milestones`` (epochs); "cosine" falls
            from ``lr`` to ``final_lr`` over the epochs after warm-up.
        milestones: see schedule.
        gamma: see schedule.
        final_lr: see schedule.
        warmup_epochs: epochs of linear rise from lr / 100.
    """
    if epoch < warmup_epochs:
        return lr * (0.01 + 0.99 * epoch / warmup_epochs)
    if schedule == "step":
        return lr * gamma ** sum(epoch >= milestone for milestone in milestones)
    progress = (epoch - warmup_epochs) / max(1e-9, epochs - warmup_epochs)
    return final_lr + (lr - final_lr) * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group ``lr`` times its own ``lr_scale``."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def moving_average(model: nn.Module, decay: float) -> ModelEmaV3:
    """Exponential moving average of a network (timm's ``ModelEmaV3``).

    Call ``.update(model, step)`` after each optimizer step. With w_t the model after step t,
    counted from 1, and a_t the average::

        a_t = d_t a_{t-1} + (1 - d_t) w_t,    d_t = min(decay, 1 - t^(-2/3))

    so that a_1 = w_1 and the initial weights have little influence for any decay: d_10 = 0.78,
    d_1000 = 0.99, d_32000 = 0.999. Floating-point buffers, the (private) running statistics, are
    averaged too; integer buffers are copied. Processes without synchronized norms average
    their own statistics: call :func:`ffn.engine.distributed.average_buffers` on ``.module`` before
    a test.

    The state is ``.module.state_dict()``, with the model's own keys, and the step number.

    Args:
        model: on its device, not wrapped in DDP. The average starts as a copy of it.
        decay: above 0 and below 1; the average spans about 1 / (1 - decay) steps.

    Returns:
        The average: ``.module`` is the network, in evaluation mode and without gradients.

    Raises:
        ValueError: ``decay`` is out of range, or weights are in half precision, where most updates
            round to zero.
    """
    if not 0 < decay < 1:
        raise ValueError(f"decay is {decay}; expected above 0 and below 1, e.g. 0.999")
    narrow = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
    if narrow:
        raise ValueError(
            f"the model has weights in {', '.join(map(str, narrow))}, too coarse for an average; "
            "keep them in float32 and train under torch.autocast (train.precision)"
        )
    average = _MovingAverage(model, decay=decay, use_warmup=True)
    average.module.requires_grad_(False)
    return average


class _MovingAverage(ModelEmaV3):
    """Copies buffers that start with infinities, such as masks: their average would be NaN."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        self._infinite = [
            name
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point() and bool(buffer.isinf().any())
        ]

    @torch.no_grad()
    def update(self, model: nn.Module, step: int | None = None) -> None:
        super().update(model, step)
        for name in self._infinite:
            self.module.get_buffer(name).copy_(model.get_buffer(name))
