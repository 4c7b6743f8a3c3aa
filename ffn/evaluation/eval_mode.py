"""A context for evaluation: eval mode that restores the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ffn.core import FrameFlexible


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
