"""Optimiser, parameter groups and learning-rate schedule (PAPER §4)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ffn.core import NORMS, PrivateModules


def tsm_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """TSM's parameter groups: a faster head, faster biases, no decay on biases and norms.

    Head weight lr x5; head bias lr x10, no decay; other biases lr x2, no decay; norms no decay;
    everything else, alterations too, lr x1 with decay. The head is the last linear layer, and all
    its copies where every count owns one.

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


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Give every group ``lr`` times its own ``lr_scale``."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["lr_scale"]


def scaled_lr(lr: float, batch_size: int, base_batch: int | None) -> float:
    """TEMP replaced on merge."""
    return lr if base_batch is None else lr * batch_size / base_batch
