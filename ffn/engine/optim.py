"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.models import group_parameters
from timm.optim import param_groups_weight_decay
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
    heads = next((list(m.values()) for m in private if linear[-1] in m.values()), linear[-1:])
    head = {id(p) for layer in heads for p in layer.parameters()}
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    rules = {
        "weights": (1.0, weight_decay),
        "biases": (2.0, 0.0),
        "norms": (1.0, 0.0),
        "head weight": (5.0, weight_decay),
        "head bias": (10.0, 0.0),
    }
    groups: dict[str, list[nn.Parameter]] = {name: [] for name in rules}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = parameter.ndim == 1 and "bias" in name.rpartition(".")[2]  # also of GRUs
        if id(parameter) in head:
            kind = "head bias" if is_bias else "head weight"
        elif id(parameter) in norms:
            kind = "norms"
        else:
            kind = "biases" if is_bias else "weights"
        groups[kind].append(parameter)
    return [
        {"params": groups[name], "name": name, "lr_scale": scale, "weight_decay": decay}
        for name, (scale, decay) in rules.items()
        if groups[name]
    ]


def standard_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """One learning rate; biases and norms have no decay (timm's ``param_groups_weight_decay``)."""
    groups = param_groups_weight_decay(model, weight_decay)[::-1]  # weights first
    names = ["weights" if group["weight_decay"] else "vectors" for group in groups]
    return [{"name": n, "lr_scale": 1.0, **g} for n, g in zip(names, groups, strict=True)]


def decay_layers(
    groups: list[dict[str, Any]], model: nn.Module, decay: float
) -> list[dict[str, Any]]:
    """Layer-wise learning-rate decay: lower rates towards the input.

    Multiplies a parameter's ``lr_scale`` by ``decay ** (depth - layer)``, with the layers of
    :func:`layer_numbers`; the head keeps its rate (BEiT, 2106.08254, appendix; timm's
    ``param_groups_layer_decay``, which has no TSM groups).

    Args:
        groups: as :func:`tsm_groups` or :func:`standard_groups` returned them.
        model: the model with these parameters.
        decay: above 0, at most 1; 1 returns the groups unchanged.

    Returns:
        A group for each given group and layer.
    """
    if decay == 1:
        return groups
    numbers = layer_numbers(model)
    layer_of = {id(p): numbers[name] for name, p in model.named_parameters()}
    depth = max(numbers.values())
    split: dict[tuple[str, int], dict[str, Any]] = {}
    for group in groups:
        for parameter in group["params"]:
            layer = layer_of[id(parameter)]
            own = {**group, "params": [], "lr_scale": group["lr_scale"] * decay ** (depth - layer)}
            split.setdefault((group["name"], layer), own)["params"].append(parameter)
    return list(split.values())


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """The layer of every parameter, counted in residual blocks from the input.

    The stem has number 0, each block the next number, and the head the last. The network's
    ``group_matcher``, as all of timm's have, names the parameters of stem and blocks; all others
    belong to the head.

    Returns:
        Numbers by the names of ``model.named_parameters()``.

    Raises:
        ValueError: no module has a ``group_matcher``.
    """
    for prefix, module in model.named_modules():
        if hasattr(module, "group_matcher"):
            matched = group_parameters(module, module.group_matcher(coarse=False), reverse=True)
            start, head = f"{prefix}." if prefix else "", max(matched.values()) + 1
            numbers = {f"{start}{name}": number for name, number in matched.items()}
            return {name: numbers.get(name, head) for name, _ in model.named_parameters()}
    raise ValueError(
        f"a {type(model).__name__} has no group_matcher to name its layers, as timm's networks "
        "have; add one, freeze by name patterns, or set optim.layer_decay=1"
    )


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
        milestones, gamma, final_lr: of the schedules.
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
