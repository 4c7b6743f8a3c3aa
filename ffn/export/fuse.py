"""``ffn.fuse``: the fastest plain network with the outputs of a trained one."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, WeightAlteration, extract
from ffn.core.convert import replace_all
from ffn.export.dataflow import record
from ffn.export.deployed import dtype_of
from ffn.export.folding import Folder
from ffn.export.formats import ExportError
from ffn.export.kernels import InFloat32, choose_kernels

HALVES = (torch.bfloat16, torch.float16)
TOLERANCE = 1e-4  # largest difference of an output, relative to the largest output


class FuseError(ExportError, ValueError):
    """The fused network does not compute the outputs of the original one."""


class DifferenceError(FuseError):
    """The outputs of the fused network are others; those of the original one are finite."""


@dataclass(frozen=True)
class FusionReport:
    """What :func:`fuse` did.

    Attributes:
        frames: the number of frames that the network was fused for; None if it was not given.
        folded: names of folded norms and weight alterations, with the layers that they are now in.
        kept: names of norms and weight alterations that remain, with the reason.
        fp32: names of the layers that stay in fp32 when the network is converted to bf16 or fp16.
        difference: largest absolute difference of an output, for the example clip and
            clips of 1 and 2 frames and of the ends of the range.
        largest: largest absolute output.
        active: the trained count, or the interpolated one, of the sub-network; None for a plain
            network.
        slow: why layers keep their operators (``ffn.export.kernels``); empty if they do not.
    """

    frames: int | None
    folded: dict[str, tuple[str, ...]]
    kept: dict[str, str]
    fp32: tuple[str, ...]
    difference: float
    largest: float
    active: int | None = None
    slow: str = ""

    def __str__(self) -> str:
        first = (
            f"{len(self.folded)} norms and weight alterations folded, {len(self.kept)} kept; "
            f"largest difference of an output {self.difference:.1e} (largest {self.largest:.3g})"
        )
        kept: dict[str, list[str]] = defaultdict(list)
        for name, reason in self.kept.items():
            kept[reason].append(name)
        rows = [
            f"  {len(names)} kept ({', '.join(names[:3])}{', …' * (len(names) > 3)}): {reason}"
            for reason, names in kept.items()
        ]
        if self.fp32:
            rows.append(f"  in fp32 in every precision: {', '.join(self.fp32)}")
        if self.slow:
            rows.append(f"  all layers keep their operators: {self.slow}")
        return "\n".join([first, *rows])


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
    ``.bfloat16()`` of it is a network in bf16, except layers whose weights would lose too much
    (``fusion.fp32``).

    Args:
        model: a frame-flexible network, or a plain one.
        frames: T; needed for a frame-flexible network. The result also accepts clips of other T.
        example: a clip (B, C, T, H, W) that the network accepts; default: random frames of 64 px.
        kernels: for a network on a CPU, also choose the memory layout and operators that torch
            runs fast there (``ffn.export.kernels``); False for other runtimes.

    Raises:
        ValueError: ``frames`` is missing or less than 1, the network is in half precision,
            or its output is no tensor.
        FuseError: an output for the example is NaN or infinite, or differs by more than 1e-4 of
            the largest one, also for clips of 1 and 2 frames and of the ends of the range.
    """
    if frames is not None and (not isinstance(frames, int) or frames < 1):
        raise ValueError(f"frames is {frames!r}; expected an integer of 1 or more")
    if isinstance(model, FrameFlexible):
        if frames is None:
            counts = ", ".join(map(str, model.trained_frames))
            raise ValueError(f"frames is missing; the sub-networks are those of {counts} frames")
        active = model.select(frames)
        network = extract(model, active)
    else:
        active = model.fusion.active if hasattr(model, "fusion") else None
        network = copy.deepcopy(model)
    network = network.eval().requires_grad_(False)
    halves = [name for name, p in network.named_parameters() if p.dtype in HALVES]
    if halves and not hasattr(model, "fusion"):
        raise ValueError(
            f"{halves[0]} is in {str(network.get_parameter(halves[0]).dtype)[6:]}; fusion needs "
            "the weights in fp32. Convert the fused network: ffn.fuse(model, frames).bfloat16()"
        )
    time = model.frame_dim if isinstance(model, FrameFlexible) else 2
    clip = _example(network, frames or 8, time) if example is None else example.clone()
    expected = _first_outputs(network, clip, is_default=example is None)
    if not expected.isfinite().all():
        raise FuseError(
            f"the outputs of {type(network).__name__} are NaN or infinite for "
            f"{'random frames' if example is None else 'the example'}, also without fusion; its "
            "weights are damaged"
        )
    counts = {1, 2, *(model.ranges[active] if active in getattr(model, "ranges", {}) else ())}
    cases = [(clip, expected), *_of_other_lengths(network, clip, time, sorted(counts))]

    _remove(network, _is_dropout)  # one between a layer and its norm would separate them
    folder = Folder(network)
    while folder.fold([record(network, x, WeightAlteration) for x, _ in cases]):
        pass  # a fold may allow another
    _remove(network, lambda module: getattr(module, "is_alteration_site", False))
    on_cpu = clip.device.type == "cpu"
    network, difference, slow = _checked(network, cases, time, kernels=kernels and on_cpu)
    folder.network = network

    fp32 = tuple(name for name, _ in network.named_modules() if name in folder.fp32)
    exact = [network.get_submodule(name) for name in fp32]
    exact = [layer for layer in exact if not isinstance(layer, InFloat32)]
    replace_all(network, {id(layer): InFloat32(layer) for layer in exact})
    largest, kept = expected.abs().max().item(), folder.kept()
    network.fusion = FusionReport(
        frames, folder.folded, kept, fp32, difference, largest, active, slow
    )
    if hasattr(model, "record"):  # of ffn.load, for ffn.export
        network.record = model.record
    return network


def _checked(
    network: nn.Module, cases: Sequence[tuple[Tensor, Tensor]], time: int, *, kernels: bool
) -> tuple[nn.Module, float, str]:
    """The network with faster operators, its largest difference, and "".

    Or the given network, and why it keeps its operators: it reads attributes of its layers, or
    kernels of the device are wrong for the other memory layout.
    """
    reason = ""
    if kernels:
        faster = copy.deepcopy(network)
        choose_kernels(faster)
        try:
            return faster, _largest_difference(faster, cases, time), ""
        except Exception as error:  # any, of a network of anyone
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return network, _largest_difference(network, cases, time), reason


def _largest_difference(
    network: nn.Module, cases: Sequence[tuple[Tensor, Tensor]], time: int
) -> float:
    return max(_difference(network, clip, expected, clip.shape[time]) for clip, expected in cases)


def _difference(network: nn.Module, clip: Tensor, expected: Tensor, frames: int) -> float:
    """The largest difference of an output; raises DifferenceError for more than `TOLERANCE`."""
    largest = expected.abs().max().item()
    difference = (_outputs(network, clip) - expected).abs().max().item()
    if difference <= TOLERANCE * largest:  # NaN is not
        return difference
    raise DifferenceError(
        f"the fused {type(network).__name__} differs by up to {difference:.1e} from the original "
        f"for {frames} frames, where the largest output is {largest:.3g} and {TOLERANCE:g} of it "
        f"is accepted; run it unfused: ffn.extract, or --no-fuse of ffn predict and "
        f"ffn test"
    )


def _outputs(network: nn.Module, clip: Tensor) -> Tensor:
    """Outputs for a clip; on a GPU in float64, where fp32 may be TF32."""
    try:
        output = network.double()(clip.double()) if clip.is_cuda else network(clip)
    finally:  # also if the network refuses the clip
        if clip.is_cuda:
            network.to(clip.dtype)  # the weights of before: float64 holds them exactly
    if not isinstance(output, Tensor):
        name, kind = type(network).__name__, type(output).__name__
        raise ValueError(f"{name} returns a {kind}; fusion needs a network that returns a tensor")
    return output


def _first_outputs(network: nn.Module, clip: Tensor, *, is_default: bool) -> Tensor:
    """Outputs for a clip that the network may refuse."""
    try:
        return _outputs(network, clip)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        name, shape = type(network).__name__, tuple(clip.shape)
        what = "random frames" if is_default else "the example"
        remedy = "; pass a clip that it takes: example=" if is_default else ""
        raise ValueError(
            f"{name} does not take {what} {shape}{remedy}. It reports: {error}"
        ) from error


def _of_other_lengths(
    network: nn.Module, clip: Tensor, time: int, counts: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """Clips of other numbers of frames with their outputs, as far as the network accepts them.

    A network may have other branches for them, and then runs some layers in one of both only.
    """
    cases = []
    for frames in counts:
        order = torch.arange(frames, device=clip.device) % clip.shape[time]
        short = clip[:1].index_select(time, order)
        if frames != clip.shape[time]:
            try:
                cases.append((short, _outputs(network, short)))
            except Exception:  # any, of a network for longer clips, or for clips of one length
                continue
    return [(short, output) for short, output in cases if output.isfinite().all()]


def _remove(network: nn.Module, is_unused: Callable[[nn.Module], bool]) -> None:
    unused = [module for module in network.modules() if is_unused(module)]
    replace_all(network, {id(module): nn.Identity() for module in unused})


def _is_dropout(module: nn.Module) -> bool:
    """Whether a module is dropout or stochastic depth, of torch, timm or torchvision."""
    is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
    return is_dropout or type(module).__name__ in ("DropPath", "StochasticDepth")


def _example(network: nn.Module, frames: int, time: int) -> Tensor:
    first = next(network.parameters(), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    clip = torch.randn(2, 3, frames, 64, 64, generator=generator)
    clip = clip.to(first.device, dtype_of(network))
    return clip if time == 2 else clip.movedim(2, time).contiguous()
