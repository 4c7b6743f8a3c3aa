"""3-D convolutions with right outputs and gradients in bf16 on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv3d(nn.Conv3d):
    """``nn.Conv3d``, in fp32 where torch's bf16 on a CPU is wrong.

    oneDNN (torch 2.15) reads uninitialised memory if the kernel spans more frames than the clip
    has: for the gradients of the weights, and on CPUs with AMX also for the outputs of 1 frame. NaN
    and values up to 1e38 were measured. Inference of 2 frames and more runs in bf16.
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not x.is_cpu:
            return super()._conv_forward(x, weight, bias)
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        if autocast not in (torch.bfloat16, torch.float16):
            return super()._conv_forward(x, weight, bias)
        if not torch.is_grad_enabled() and (x.shape[2] > 1 or self.kernel_size[0] == 1):
            return super()._conv_forward(x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            bias = None if bias is None else bias.float()
            return super()._conv_forward(x.float(), weight.float(), bias).to(autocast)

    def for_inference(self) -> nn.Conv3d:
        """A convolution of torch with the same outputs."""
        conv = nn.Conv3d(
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            groups=self.groups,
            bias=self.bias is not None,
            device=self.weight.device,
            dtype=self.weight.dtype,
        )
        conv.load_state_dict(self.state_dict())
        return conv.requires_grad_(False)


def use_right_conv3d(network: nn.Module) -> nn.Module:
    """Make every ``nn.Conv3d`` of a network a `Conv3d`, in place; subclasses stay as they are."""
    for module in network.modules():
        if type(module) is nn.Conv3d:
            module.__class__ = Conv3d
    return network
