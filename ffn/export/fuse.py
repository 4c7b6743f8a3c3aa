"""``ffn.fuse``: the fastest plain network with the outputs of a trained one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, extract
from ffn.core.convert import replace_all
from ffn.export.dataflow import record
from ffn.export.deployed import dtype_of
from ffn.export.folding import Folder
from ffn.export.formats import ExportError
from ffn.export.kernels import choose_kernels

HALVES = (torch.bfloat16, torch.float16)
TOLERANCE = 1e-4  # largest difference of an output, relative to the largest output
Case = tuple[Tensor, Tensor]  # a clip and the outputs of the original network


class FuseError(ExportError, ValueError):
    """The fused network does not compute the outputs of the original one."""


@dataclass(frozen=True)
class FusionReport:
    """What :func:`fuse` did.

    Attributes:
        frames: that the network was fused for; None if they were not given.
        folded: names of folded norms and weight alterations, with the layers that they are now in.
        kept: names of norms and weight alterations that remain, as layer norms do.
        difference: largest absolute difference of an output, for the example clip and
            clips of 1 and 2 frames and of the ends of the range.
        largest: largest absolute output.
        active: the trained count, or the interpolated one, of the sub-network; None for a plain
            network.
    """

    frames: int | None
    folded: dict[str, tuple[str, ...]]
    kept: tuple[str, ...]
    difference: float
    largest: float
    active: int | None = None

    def __str__(self) -> str:
        kept = f" ({', '.join(self.kept[:3])}{', …' * (len(self.kept) > 3)})" if self.kept else ""
        return (
            f"{len(self.folded)} norms and weight alterations folded, {len(self.kept)} kept{kept}; "
            f"largest difference of an output {self.difference:.1e} (largest {self.largest:.3g})"
        )


@torch.inference_mode(False)  # in inference mode, the operators are others
@torch.no_grad()
def fuse(
    model: nn.Module,
    frames: int | None = None,
    *,
    example: Tensor | None = None,
    kernels: bool = True,
) -> nn.Module:
    """Return a plain network that computes the same outputs in eval mode, faster.

    Of a frame-flexible network, the sub-network for ``frames`` is extracted. Batch norms and
    weight alterations are folded into convolutions and linear layers, where clips of this and of
    other lengths prove that it is exact; dropout and stochastic depth are removed. The result is a
    copy in eval mode, for inference only; its attribute ``fusion`` is the :class:`FusionReport`.
    ``.bfloat16()`` of it is a network in bf16, on a CPU except 3-D convolutions.

    Args:
        model: a frame-flexible network, or a plain one.
        frames: T; needed for a frame-flexible network. The result also accepts clips of other T.
        example: a clip (B, C, T, H, W) that the network accepts; default: random frames of 64 px.
        kernels: for a network on a CPU, also choose the memory layout and operators that torch
            runs fast there (``ffn.export.kernels``); False for other runtimes.

    Raises:
        ValueError: ``frames`` is missing or less than 1, the network is in half precision, or it
            does not map the example to a tensor.
        FuseError: an output for the example is NaN or infinite, or differs by more than 1e-4 of
            the largest one, also for clips of 1 and 2 frames and of the ends of the range.
    """
    network, active = _plain(model, frames)
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    network = network.cpu()  # on a GPU, fp32 may be TF32
    time = model.frame_dim if isinstance(model, FrameFlexible) else 2
    clip = _example(network, frames or 8, time) if example is None else example.detach().cpu()
    expected = _outputs(network, clip)
    if not expected.isfinite().all():
        raise FuseError(
            f"the outputs of {type(network).__name__} are NaN or infinite for the example, also "
            "without fusion; its weights are damaged"
        )
    counts = {1, 2, *(model.ranges[active] if active in getattr(model, "ranges", {}) else ())}
    cases = [(clip, expected), *_of_other_lengths(network, clip, time, sorted(counts))]

    _remove_dropout(network)  # between a layer and its norm, it would separate them
    folder = Folder(network)
    while folder.fold([record(network, x) for x, _ in cases]):
        pass  # a fold may allow another
    sites = [m for m in network.modules() if getattr(m, "is_alteration_site", False)]
    replace_all(network, {id(site): nn.Identity() for site in sites})
    faster = _with_kernels(network, cases) if kernels and device.type == "cpu" else None
    network = folder.network = faster or network

    difference, largest = _largest_difference(network, cases), expected.abs().max().item()
    if not difference <= TOLERANCE * largest:  # NaN is not
        raise FuseError(
            f"the fused {type(network).__name__} differs by up to {difference:.1e} from the "
            f"original, where the largest output is {largest:.3g} and {TOLERANCE:g} of it is "
            "accepted; run it unfused: ffn.extract, or runtime unfused"
        )
    kept = folder.kept()
    network.fusion = FusionReport(frames, folder.folded, kept, difference, largest, active)
    if hasattr(model, "record"):  # of ffn.load, for ffn.export
        network.record = model.record
    return network.to(device)


def plain_copy(model: nn.Module, frames: int) -> tuple[nn.Module, int | None]:
    """A copy of a plain network, or of the sub-network for so many frames; and its count."""
    if isinstance(model, FrameFlexible):
        active = model.select(frames)
        return extract(model, active), active
    return copy.deepcopy(model), model.fusion.active if hasattr(model, "fusion") else None


def _plain(model: nn.Module, frames: int | None) -> tuple[nn.Module, int | None]:
    """A copy of the network for so many frames, in eval mode, and its count."""
    if frames is not None and (not isinstance(frames, int) or frames < 1):
        raise ValueError(f"frames is {frames!r}; expected an integer of 1 or more")
    if isinstance(model, FrameFlexible) and frames is None:
        counts = ", ".join(map(str, model.trained_frames))
        raise ValueError(f"frames is missing; the sub-networks are those of {counts} frames")
    network, active = plain_copy(model, frames)
    half = next((name for name, p in network.named_parameters() if p.dtype in HALVES), None)
    if half and not hasattr(model, "fusion"):
        raise ValueError(
            f"{half} is in half precision; fusion needs the weights in fp32. Convert the fused "
            "network: ffn.fuse(model, frames).bfloat16()"
        )
    return network.eval().requires_grad_(False), active


def _with_kernels(network: nn.Module, cases: Sequence[Case]) -> nn.Module | None:
    """A copy with faster operators; None if it reads attributes of its layers, or is not exact."""
    faster = copy.deepcopy(network)
    choose_kernels(faster)
    try:
        exact = _largest_difference(faster, cases) <= TOLERANCE * cases[0][1].abs().max()
    except Exception:  # any, of a network of anyone
        return None
    return faster if exact else None


def _largest_difference(network: nn.Module, cases: Sequence[Case]) -> float:
    return max((network(clip) - expected).abs().max().item() for clip, expected in cases)


def _outputs(network: nn.Module, clip: Tensor) -> Tensor:
    name = type(network).__name__
    try:
        output = network(clip)
    except RuntimeError as error:
        raise ValueError(
            f"{name} does not take the example {tuple(clip.shape)}; pass a clip that it takes: "
            f"example=. It reports: {error}"
        ) from error
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        raise ValueError(f"{name} returns a {kind}; fusion needs a network that returns a tensor")
    return output


def _of_other_lengths(
    network: nn.Module, clip: Tensor, time: int, counts: Sequence[int]
) -> list[Case]:
    """Clips of other numbers of frames with their outputs, as far as the network accepts them.

    A network may have other branches for them, and then runs some layers in one of both only.
    """
    cases = []
    for frames in counts:
        short = clip[:1].index_select(time, torch.arange(frames) % clip.shape[time])
        if frames != clip.shape[time]:
            try:
                cases.append((short, _outputs(network, short)))
            except Exception:  # any, of a network for longer clips, or for clips of one length
                continue
    return [(short, output) for short, output in cases if output.isfinite().all()]


def _remove_dropout(network: nn.Module) -> None:
    """Replace dropout and stochastic depth of torch, timm and torchvision by identities."""
    unused = [
        module
        for module in network.modules()
        if isinstance(module, nn.modules.dropout._DropoutNd)
        or type(module).__name__ in ("DropPath", "StochasticDepth")
    ]
    replace_all(network, {id(module): nn.Identity() for module in unused})


def _example(network: nn.Module, frames: int, time: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    clip = torch.randn(2, 3, frames, 64, 64, generator=generator).to(dtype_of(network))
    return clip if time == 2 else clip.movedim(2, time).contiguous()
