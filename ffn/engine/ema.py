"""A moving average of the weights, which often tests better than the last weights do.

timm's ``ModelEmaV3`` does the work; what is chosen here is what this project needs of it.
"""

from __future__ import annotations

import torch
from timm.utils import ModelEmaV3
from torch import nn


def moving_average(model: nn.Module, decay: float) -> ModelEmaV3:
    """An average network, to be moved by ``.update(model, step)`` after each optimiser step.

    With w_t what the model holds after step t, counted from 1, and a_t the average::

        a_t = d_t a_{t-1} + (1 - d_t) w_t,    d_t = min(decay, 1 - t^(-2/3))

    so that a_1 = w_1, and the start is forgotten soon, whatever the decay: d_10 = 0.78,
    d_1000 = 0.99, d_32000 = 0.999. Buffers with fractions, the (private) running statistics, are
    averaged likewise; whole numbers are copied. Processes whose norms are not synchronised average
    their own statistics: take :func:`ffn.engine.distributed.average_buffers` of ``.module`` before
    a test, which commutes with this average.

    Its whole state is ``.module.state_dict()``, with the model's own keys; the position is the
    run's ``step``.

    Args:
        model: on its device, where the average stays too; not wrapped in DDP, frame-flexible or
            not. The average starts as a copy of it.
        decay: of the average, above 0 and below 1: it spans about 1 / (1 - decay) steps.

    Returns:
        The average: ``.module`` is the network, in evaluation mode and without gradients.

    Raises:
        ValueError: another decay, or weights in half precision, where most steps round to nothing.

    Note:
        The warm-up is timm's, by K. Crowson; TensorFlow's, (1 + t) / (10 + t), forgets faster.
    """
    if not 0 < decay < 1:
        raise ValueError(f"decay is {decay}; expected above 0 and below 1, as 0.999")
    narrow = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
    if narrow:
        raise ValueError(
            f"the model has weights in {', '.join(map(str, narrow))}, too coarse to be averaged; "
            "keep them in float32 and train under torch.autocast (train.precision)"
        )
    average = ModelEmaV3(model, decay=decay, use_warmup=True)
    average.module.requires_grad_(False)
    return average
