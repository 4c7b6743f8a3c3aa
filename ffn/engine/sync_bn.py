"""BatchNorm with statistics over the batches of all processes, on CUDA devices."""

from __future__ import annotations

from timm.layers import convert_sync_batchnorm
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ffn.engine.distributed import World


def convert_sync_bn(model: nn.Module, world: World) -> nn.Module:
    """Convert every BatchNorm of a model, private copies included, to torch's ``SyncBatchNorm``.

    timm's ``BatchNormAct2d`` becomes its ``SyncBatchNormAct``. Use it before or after
    :func:`ffn.core.convert`, and before norms are frozen and the model is wrapped in DDP.
    Parameters and state-dict keys do not change, nor does anything if there is one process.

    Args:
        model: changed in place.
        world: the processes; their group must exist when the model is first trained.

    Returns:
        The model; a new module if it is a BatchNorm itself.

    Raises:
        ValueError: the processes use CPUs, which ``SyncBatchNorm`` does not support; or a subclass
            of BatchNorm has its own ``forward``, which would be lost.
    """
    if world.size == 1:
        return model
    norms = {type(module) for module in model.modules() if isinstance(module, _BatchNorm)}
    own = [kind.__name__ for kind in norms if not kind.__module__.startswith(("torch.", "timm."))]
    if own:
        raise ValueError(
            f"{own[0]} is a BatchNorm of its own, which cannot be synchronized; use torch's "
            "BatchNorm or timm's BatchNormAct2d, or set train.sync_bn=false"
        )
    if norms and world.device.type != "cuda":
        raise ValueError("train.sync_bn needs CUDA devices; set train.sync_bn=false on a CPU")
    return convert_sync_batchnorm(model)
