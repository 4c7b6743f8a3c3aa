"""Exact statistics for BatchNorm: Precise BN (Wu and Johnson 2021, 2105.07576, §3).

Running statistics are averages over the last batches of training, while weights still change. Here
the trained network runs over N training batches, and each norm gets the mean and variance of all
its inputs. In a frame-flexible network, each private norm uses the inputs at its own frame count.
Not supported: other norms, such as ``InstanceNorm`` with running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ffn.core import FrameFlexible
from ffn.engine.distributed import World, gather
from ffn.engine.freezing import is_frozen


class NoBatchError(ValueError):
    """No process has a batch to take statistics from."""


@torch.no_grad()
def update_precise_bn(
    model: nn.Module,
    batches: Iterable[dict[str, Any]],
    world: World,
    sub_network: Callable[[int, int], int] = lambda view, frames: view,
) -> int:
    """Compute the running statistics of every BatchNorm from the given batches.

    Norms use batch statistics, as in training; all other modules are in evaluation mode, because
    dropout and drop path change the variance of features. Only running statistics change;
    gradients, modes and the active frame count do not. Forward passes use the precision of a
    surrounding ``torch.autocast``; sums are in float64.

    ``num_batches_tracked`` is set to the number of batches of a norm (on one process), so that a
    cumulative average (``momentum=None``) continues from them.

    Args:
        model: frame-flexible or not; not wrapped in DDP.
        batches: ``{"clips": {view: (B, C, T, H, W)}}`` on the model's device, normalized; the
            same number on each process if norms are synchronized. According to the paper, 1,000
            to 10,000 samples are enough.
        world: the processes; all get the statistics over the batches of all.
        sub_network: the count of the sub-network for a view and its number of frames, as
            :meth:`ffn.engine.tasks.base.Task.sub_network`; by default, the view's name. Plain
            models do not use it.

    Returns:
        The number of updated norms; 0 if no BatchNorm has running statistics. A norm that no view
        uses keeps its statistics, as frozen norms do.

    Raises:
        NoBatchError: there is no batch; all statistics stay.
    """
    tracked = [m for m in model.modules() if isinstance(m, _BatchNorm) and not is_frozen(m)]
    norms = [norm for norm in tracked if norm.running_mean is not None]
    if not norms:
        return 0
    sizes = [2 * norm.num_features + 1 for norm in norms]
    zeros = norms[0].running_mean.new_zeros(sum(sizes), dtype=torch.float64)
    rows = dict(zip(norms, zeros.split(sizes), strict=True))
    passes = dict.fromkeys(norms, 0)

    def add(norm: _BatchNorm, args: tuple[Tensor, ...]) -> None:
        rows[norm] = combine(torch.stack([rows[norm], channel_moments(args[0])]))
        passes[norm] += 1

    with _normalizing_by_batch(model, norms, add):
        for batch in batches:
            for view, clip in batch["clips"].items():
                if isinstance(model, FrameFlexible):
                    model(clip, active=sub_network(view, clip.shape[model.frame_dim]))
                else:
                    model(clip)

    seen = _over_processes(torch.cat(list(rows.values())), sizes, world)
    if not any(row[0] > 0 for row in seen):
        raise NoBatchError("batches is empty; give one or more (an iterator can be used only once)")
    most = [max(counts) for counts in zip(*gather(list(passes.values()), world), strict=True)]
    for norm, row, batches_seen in zip(norms, seen, most, strict=True):
        if row[0] > 0:
            mean, squares = row[1:].chunk(2)
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(squares / (row[0] - 1))  # unbiased, as BatchNorm's
            norm.num_batches_tracked.fill_(batches_seen)
    return sum(bool(row[0] > 0) for row in seen)


@contextmanager
def _normalizing_by_batch(
    model: nn.Module, norms: list[_BatchNorm], see: Callable[[Any, Any], None]
) -> Iterator[None]:
    """Put the model in evaluation mode, but norms in training mode; restore all modes at exit."""
    modes = {module: module.training for module in model.modules()}
    tracked = {norm: norm.track_running_stats for norm in norms}
    active = model.active if isinstance(model, FrameFlexible) else None
    hooks = [norm.register_forward_pre_hook(see) for norm in norms]
    try:
        model.eval()
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for norm, value in tracked.items():
            norm.track_running_stats = value
        if active is not None:
            model.activate(model.select(active))


def _over_processes(rows: Tensor, sizes: list[int], world: World) -> list[Tensor]:
    """Combine the rows of all processes; `rows` holds one row per norm, concatenated."""
    parts = torch.stack(gather(rows.cpu(), world)).to(rows.device)
    return [combine(part) for part in parts.split(sizes, 1)]


def channel_moments(x: Tensor) -> Tensor:
    """Return the row of a tensor, (2 C + 1,) in float64.

    Args:
        x: (N, C, …), with any number of values per channel, including 0.
    """
    dims = [dim for dim in range(x.ndim) if dim != 1]
    count = x.numel() // max(1, x.shape[1])
    row = x.new_zeros(2 * x.shape[1] + 1, dtype=torch.float64)
    if count:
        # Half precision would round the means; float32 and float64 are kept.
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = x.mean(dims, keepdim=True)  # torch.var_mean is 3 to 15 times slower
        x = x - mean
        # The rounding error of the mean: the corrected two-pass algorithm (Chan et al. 1983).
        rest = x.mean(dims).double()
        row[0] = count
        row[1:] = torch.cat([mean.flatten() + rest, x.square().sum(dims) - count * rest.square()])
    return row


def combine(rows: Tensor) -> Tensor:
    """Combine the rows of several parts into the row of all values.

    Args:
        rows: (R, 2 C + 1), of R parts; parts without values are ignored.
    """
    count, mean, squares = rows[:, :1], *rows[:, 1:].chunk(2, 1)
    total = count.sum().clamp(min=1)
    overall = (count * mean).sum(0) / total
    squares = (squares + count * (mean - overall).square()).sum(0)
    return torch.cat([count.sum(0), overall, squares])
