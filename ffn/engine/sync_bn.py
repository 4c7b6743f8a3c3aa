"""BatchNorm with statistics over the batches of all processes, on CUDA devices and on CPUs.

CUDA uses torch's ``SyncBatchNorm``, or timm's ``SyncBatchNormAct`` for ``BatchNormAct2d``. Neither
accepts CPU tensors; `CpuSyncBatchNorm` does. Private norms of a frame-flexible network are
converted like other norms: each copy is a module, and synchronizes only while it is active.

Statistics are rows ``[count, mean per channel, sum of squared deviations per channel]`` in float64.
Rows are combined by the pairwise formula of Chan, Golub and LeVeque (1983), because plain sums of
squares lose all digits where the mean is large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ffn.engine.distributed import World, gather_rows

_KNOWN = (_BatchNorm, nn.SyncBatchNorm, BatchNormAct2d, SyncBatchNormAct)


class CpuSyncBatchNorm(_BatchNorm):
    """torch's ``SyncBatchNorm`` for CPU tensors; made by :func:`convert_sync_bn`.

    Not a subclass of torch's, because DDP refuses that on a CPU. Batches may differ in size between
    processes: every value has the same weight.
    """

    process_group: dist.ProcessGroup | None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of (N, C, …); shape and dtype do not change."""
        if self.training and _processes(self.process_group) > 1:
            x = self._normalize(x)
        else:
            x = super().forward(x)
        if hasattr(self, "act"):  # timm's BatchNormAct2d
            x = self.act(self.drop(x))
        return x

    def _normalize(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        row = combine(gather_rows(channel_moments(x.detach()), self.process_group))
        count, mean, squares = row[:1], *row[1:].chunk(2)
        if count < 2:
            raise ValueError(
                f"{int(count)} value per channel over all processes; normalization needs 2. Use a "
                "larger batch"
            )
        self._track(mean, squares / (count - 1))

        inverse_std = (squares / count + self.eps).rsqrt()
        normal = _Normalize.apply(x, mean, inverse_std, count, self.process_group)
        # A new tensor: an in-place activation must not change the tensor saved for the backward.
        normal = normal.clone() if self.weight is None else normal * _along(self.weight, x)
        if self.bias is not None:
            normal = normal + _along(self.bias, x)
        return normal.to(x.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2:
            raise ValueError(f"input has {x.ndim} dims {tuple(x.shape)}; expected (N, C, …)")

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        if not self.track_running_stats or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        cumulative = self.momentum is None
        momentum = 1 / int(self.num_batches_tracked) if cumulative else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


SYNCHRONIZED = (CpuSyncBatchNorm, nn.SyncBatchNorm)


class _Normalize(torch.autograd.Function):
    """``(x - mean) / std``, where mean and std depend on x of all processes.

    With n values per channel and gradients g of the normalized values y (Ioffe and Szegedy 2015,
    §3): ``(g - sum(g) / n - y sum(g y) / n) / std``, both sums over all processes.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, inverse_std: Tensor, count: Tensor, group: Any
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        inverse_std = _along(inverse_std.to(dtype), x)
        normal = (x.to(dtype) - _along(mean.to(dtype), x)) * inverse_std
        ctx.save_for_backward(normal, inverse_std)
        ctx.count, ctx.group, ctx.dtype = float(count), group, x.dtype
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse_std = ctx.saved_tensors
        dims = [dim for dim in range(normal.ndim) if dim != 1]
        sums = torch.stack([gradient.sum(dims), (gradient * normal).sum(dims)])
        dist.all_reduce(sums, group=ctx.group)
        shift, slope = (_along(total / ctx.count, normal) for total in sums)
        gradient = (gradient - shift - normal * slope) * inverse_std
        return gradient.to(ctx.dtype), None, None, None, None


def convert_sync_bn(model: nn.Module, world: World) -> nn.Module:
    """Convert every BatchNorm of a model, private copies included, to synchronized BatchNorm.

    Use it before or after :func:`ffn.core.convert`, and before wrapping the model in DDP.
    Evaluation, frozen norms (``eval()``) and state-dict keys do not change, nor do layer and group
    norms, nor anything if there is one process.

    Note:
        timm's ``convert_sync_batchnorm`` creates new modules: it loses hooks, attributes and
        process groups, separates shared norms, and drops a norm's own ``forward`` silently.

    Args:
        model: changed in place; parameters stay the same tensors.
        world: the processes; their group must exist when the model is first trained.

    Returns:
        The model; a new module if it is a BatchNorm itself.

    Raises:
        ValueError: a subclass of BatchNorm defines its own ``forward``, which would be lost.
    """
    if world.size == 1:
        return model
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    synchronized = {norm: _synchronized(norm, world.device) for norm in norms}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            parent._modules[name] = synchronized.get(child, child)
    return synchronized.get(model, model)


def _synchronized(norm: _BatchNorm, device: torch.device) -> _BatchNorm:
    """Return a synchronized norm that shares all tensors, hooks and attributes with the given."""
    if isinstance(norm, CpuSyncBatchNorm):
        return norm
    if not any(type(norm).forward is kind.forward for kind in _KNOWN):
        raise ValueError(
            f"{type(norm).__name__} is a BatchNorm with its own forward, which cannot be "
            "synchronized; use torch's BatchNorm or timm's BatchNormAct2d, or set "
            "train.sync_bn=false"
        )
    kind = SyncBatchNormAct if hasattr(norm, "act") else nn.SyncBatchNorm
    kind = CpuSyncBatchNorm if device.type == "cpu" else kind
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    new.__dict__.update(norm.__dict__)
    new.process_group = getattr(norm, "process_group", None)
    return new


def _processes(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Shape one value per channel for (N, C, …)."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


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
