"""Where a TSM shifts, for a small network of every family of timm's CNNs.

``timm_networks.txt`` has a line per network: its name, the number of convolutions that shift, and
their names with # for numbers; or the start of the refusal. It was made with ``described`` below
(timm 1.0.31) and read by a person. The other tests use no rule of ``ffn``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

from ffn import backbones
from ffn.backbones.tsm import NORMS, shiftable_convs
from ffn.core import convert
from ffn.core.convert import NORMS as PRIVATE
from ffn.layers import ShiftConv2d

TABLE = Path(__file__).with_name("timm_networks.txt")
EXPECTED = dict(line.split(" ", 1) for line in TABLE.read_text().splitlines())
SHIFTED = [name for name, places in EXPECTED.items() if places[0].isdigit()]
FRAMES, SMALL = 3, (128, 128)


def described(timm_name: str) -> str:
    """The line of a network in the table, without its name."""
    with torch.device("meta"):
        net = timm.create_model(timm_name)
    try:
        convs = list(shiftable_convs(net))
    except ValueError as error:
        return re.split(r"[,;]", str(error))[0]
    patterns = dict.fromkeys(re.sub(r"\d+(?=\.|$)", "#", name) for name in convs)
    return f"{len(convs)} {' '.join(patterns)}"


def network(timm_name: str) -> tuple[nn.Module, Tensor]:
    """A TSM in which every branch has an effect, and a clip."""
    torch.manual_seed(0)
    model = backbones.build(f"tsm.{timm_name}", num_classes=3).eval()
    for parameter in model.parameters():  # blocks that start as identities
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.0)
    size = SMALL if accepts(model, SMALL) else model.net.pretrained_cfg["input_size"][1:]
    return model, torch.randn(1, 3, FRAMES, *size)


@torch.no_grad()
def accepts(model: nn.Module, size: tuple[int, int]) -> bool:
    """Whether a network takes frames of this size; some take one size only."""
    try:
        model(torch.zeros(1, 3, 1, *size))
    except (RuntimeError, AssertionError, ValueError):
        return False
    return True


def shifts(model: nn.Module) -> list[ShiftConv2d]:
    return [module for module in model.modules() if isinstance(module, ShiftConv2d)]


@pytest.mark.slow
@pytest.mark.parametrize("timm_name", EXPECTED)
def test_places(timm_name: str) -> None:
    assert described(timm_name) == EXPECTED[timm_name]


@pytest.mark.slow
@pytest.mark.parametrize("timm_name", SHIFTED)
def test_the_image_passes_the_shifts_through_shortcuts(timm_name: str) -> None:
    """With zeros in place of all shifting convolutions, logits depend on every frame.

    They would not after a single block without a shortcut.
    """
    model, clip = network(timm_name)
    for conv in shifts(model):
        conv.register_forward_hook(lambda module, args, output: output * 0)

    model(clip.requires_grad_()).square().sum().backward()

    assert clip.grad.abs().amax((0, 1, 3, 4)).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("timm_name", SHIFTED)
@torch.no_grad()
def test_inputs_that_shift_are_feature_maps_of_all_frames(timm_name: str) -> None:
    """Not pooled ones, as in gates; and there are private norms."""
    model, clip = network(timm_name)
    shapes: list[torch.Size] = []
    for conv in shifts(model):
        conv.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))

    assert model(clip).isfinite().all()

    assert len(shapes) >= len(shifts(model))
    assert all(shape[0] == FRAMES and min(shape[2:]) > 1 for shape in shapes)
    assert convert(model, (2, 4)).report.private


def residual_modules(net: nn.Module, image: Tensor) -> dict[str, nn.Module]:
    """Modules with a spatial convolution that pass their input on if all their weights are zero."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str):
        def hook(module: nn.Module, args: tuple, output: object) -> None:
            alike = len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor)
            if alike and args[0].ndim == 4 and args[0].shape == output.shape:
                inputs[name] = args[0]

        return hook

    handles = [m.register_forward_hook(keep(name)) for name, m in net.named_modules()]
    net(image)
    for handle in handles:
        handle.remove()
    for parameter in net.parameters():
        parameter.zero_()
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.zero_()
    found = {}
    for name, x in inputs.items():
        module = net.get_submodule(name)
        convs = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
        is_attention = "Att" in type(module).__name__  # or a gate
        if name and not is_attention and any(max(m.kernel_size) > 1 for m in convs):
            changes = module(x.abs() + 1) - module(x.abs() + 2)
            if changes.abs().max() > 0.5:
                found[name] = module
    return found


@pytest.mark.slow
@pytest.mark.parametrize("timm_name", SHIFTED)
@torch.no_grad()
def test_blocks_that_do_not_shift(timm_name: str) -> None:
    model, clip = network(timm_name)
    clip = clip[0].transpose(0, 1)
    model.length.frames = FRAMES
    blocks = residual_modules(model.net, clip)
    without = [
        name
        for name in blocks
        if not any(shifts(b) for n, b in blocks.items() if f"{name}.".startswith(f"{n}."))
    ]

    assert not without


def test_the_norms_are_those_of_convert() -> None:
    assert NORMS == PRIVATE
