"""Contexts for evaluation: eval mode that restores the model, no gradients, mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ffn.core import FrameFlexible

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode; on exit, restore the mode and active count of every module."""
    training = [(module, module.training) for module in model.modules()]
    active = [(m, m.active) for m in model.modules() if isinstance(m, FrameFlexible)]
    model.eval()
    try:
        yield
    finally:
        for module, mode in training:  # one by one: a frozen norm may be in eval while training
            module.training = mode
        for module, count in active:
            module.activate(module.select(count))  # `interpolate` may have changed


@contextmanager
def inference(device: torch.device, precision: str) -> Iterator[None]:
    """Disable gradients; enable autocast unless ``precision`` is "fp32".

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f'precision is "{precision}"; allowed: {", ".join(PRECISIONS)}')
    dtype = PRECISIONS[precision]
    mixed = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
    with torch.inference_mode(), mixed:
        yield
