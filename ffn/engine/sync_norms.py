"""BatchNorm whose statistics span the batches of all processes, on CUDA devices and on CPUs.

On CUDA it is torch's ``SyncBatchNorm``, which takes no CPU tensor and forgets the activation inside
timm's ``BatchNormAct2d``; both are added here. Private norms of a frame-flexible network need
nothing of their own: the copy of each trained count is a module, and synchronises alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ffn.engine.distributed import World
from ffn.engine.moments import channel_moments, combine, gather_rows

_KNOWN = (_BatchNorm, nn.SyncBatchNorm, BatchNormAct2d, SyncBatchNormAct)


class SyncNorm(nn.SyncBatchNorm):
    """A BatchNorm of any rank that, in training, normalises with the batches of all processes.

    Batches may differ in size between processes: every value counts once. Evaluation, frozen norms
    (``eval()``) and state-dict keys are those of the given norm, bit for bit.

    Args:
        norm: the BatchNorm to take over, its tensors included (shared, not copied).

    Raises:
        ValueError: a norm that computes something of its own, which would be lost.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        if not any(type(norm).forward is kind.forward for kind in _KNOWN):
            raise ValueError(
                f"{type(norm).__name__} is a BatchNorm with a forward of its own, which cannot be "
                "synchronised; use torch's BatchNorm or timm's BatchNormAct2d, or train without "
                "synchronised norms"
            )
        nn.Module.__init__(self)  # every attribute, tensor and hook is the given norm's
        self.__dict__.update(norm.__dict__)
        self.process_group = getattr(norm, "process_group", None)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel of (N, C, …); shape and dtype stay."""
        if x.device.type != "cpu":
            x = super().forward(x)
        elif self.training and _processes(self.process_group) > 1:
            x = self._forward_on_cpu(x)
        else:
            x = _BatchNorm.forward(self, x)
        if hasattr(self, "act"):  # timm's BatchNormAct2d
            x = self.act(self.drop(x))
        return x

    def _forward_on_cpu(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        row = combine(gather_rows(channel_moments(x.detach()), self.process_group))
        count, mean, squares = row[:1], *row[1:].chunk(2)
        if count < 2:
            raise ValueError(
                f"{int(count)} value per channel over all processes; normalisation needs 2. Use a "
                "larger batch"
            )
        self._track(mean, squares / (count - 1))

        inverse_std = (squares / count + self.eps).rsqrt()
        normal = _Normalise.apply(x, mean, inverse_std, count, self.process_group)
        if self.weight is not None:
            normal = normal * _along(self.weight, x)
        if self.bias is not None:
            normal = normal + _along(self.bias, x)
        return normal.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics as torch does, unbiased variance included."""
        if not self.track_running_stats or self.running_mean is None:
            return
        self.num_batches_tracked.add_(1)
        cumulative = self.momentum is None
        momentum = 1 / int(self.num_batches_tracked) if cumulative else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """``(x - mean) / std`` whose backward knows that mean and std depend on every process's x.

    With n values per channel and gradients g of the normalised values y (Ioffe and Szegedy 2015,
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


def synchronise_norms(model: nn.Module, world: World) -> nn.Module:
    """Let every BatchNorm of a model, private copies included, see the batches of all processes.

    Works before or after :func:`ffn.core.convert`, and before the model is wrapped in DDP. Layer
    and group norms do not look across a batch and stay; so does everything in a world of one.

    Args:
        model: changed in place; its parameters stay the same tensors.
        world: the processes, whose group exists when the model is first trained.

    Returns:
        The model; a new module if it is a BatchNorm itself.

    Raises:
        ValueError: a BatchNorm with a forward of its own; see :class:`SyncNorm`.
    """
    if world.size == 1:
        return model
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and type(m) is not SyncNorm]
    synchronised = {norm: SyncNorm(norm) for norm in norms}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            parent._modules[name] = synchronised.get(child, child)
    return synchronised.get(model, model)


def _processes(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def _along(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, shaped for (N, C, …)."""
    return values.view(1, -1, *[1] * (x.ndim - 2))
