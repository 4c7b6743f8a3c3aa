"""Exact statistics for BatchNorm: Precise BN (Wu and Johnson 2021, 2105.07576, §3).

Running statistics are averages over the last batches of training, while weights still change. Here
the trained network runs over N training batches, and each norm gets the mean of the statistics of
its batches, as in ``torch.optim.swa_utils.update_bn``. Other than there, dropout is off, each
private norm of a frame-flexible network uses the inputs at its own frame count, and norms that no
batch reaches keep their statistics.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ffn.core import FrameFlexible
from ffn.engine.distributed import World, average
from ffn.engine.freezing import is_frozen


@torch.no_grad()
def update_precise_bn(model: nn.Module, clips: Iterable[Tensor], world: World) -> int:
    """Compute the running statistics of every BatchNorm from the given clips.

    Norms use batch statistics, as in training; all other modules are in evaluation mode. Only
    running statistics change; gradients, modes and the active frame count do not.

    Args:
        model: frame-flexible or not; not wrapped in DDP.
        clips: (B, C, T, H, W) on the model's device, normalized. If norms are synchronized, each
            process has the same number. According to the paper, 1,000 to 10,000 samples are enough.
        world: the processes; all get the mean over the clips of all.

    Returns:
        The number of BatchNorms whose running statistics train; those without a clip keep them.
    """
    tracked = [m for m in model.modules() if isinstance(m, _BatchNorm) and not is_frozen(m)]
    norms = [norm for norm in tracked if norm.running_mean is not None]
    if not norms:
        return 0
    before = [(n.momentum, n.running_mean.clone(), n.running_var.clone()) for n in norms]
    modes = {module: module.training for module in model.modules()}
    active = model.active if isinstance(model, FrameFlexible) else None
    try:
        model.eval()
        for norm in norms:
            norm.train()
            norm.momentum = None  # a cumulative mean
            norm.reset_running_stats()
        for clip in clips:
            model(clip)
    finally:
        for module, mode in modes.items():
            module.training = mode
        if active is not None:
            model.activate(model.select(active))
        for norm, (momentum, *_) in zip(norms, before, strict=True):
            norm.momentum = momentum

    for norm, (_, mean, variance) in zip(norms, before, strict=True):
        batches_seen = norm.num_batches_tracked.double()
        sums = torch.cat(
            [norm.running_mean.double(), norm.running_var.double(), batches_seen[None]]
        )
        sums[:-1] *= batches_seen
        *_, seen = sums = average(sums, world)
        if seen > 0:
            mean, variance = (sums[:-1] / seen).chunk(2)
            norm.num_batches_tracked.fill_(round(float(seen) * world.size))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
    return len(norms)
