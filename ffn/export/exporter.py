"""Export a network to a file, and compare the file with the network."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, extract
from ffn.export.formats import format_of
from ffn.files import atomic_write

TOLERANCE = 1e-4  # largest difference of a logit, relative to the largest logit
TRACED_BATCH, CHECKED_BATCHES = 2, (1, 3)


class ExportError(RuntimeError):
    """The exported file does not compute the logits of its network."""


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    Attributes:
        path: the file.
        clip: shape (C, T, H, W) that the file takes, after the batch dimension.
        active: the trained count of the exported sub-network; None for a plain network.
        difference: largest absolute difference of a logit from the network's.
        largest: largest absolute logit of the network.
    """

    path: Path
    clip: tuple[int, ...]
    active: int | None
    difference: float
    largest: float

    def __str__(self) -> str:
        shape = ", ".join(map(str, ("B", *self.clip)))
        sub = f", sub-network of {self.active} frames" if self.active else ""
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:.2f} MB, clips ({shape}){sub}; largest "
            f"difference of a logit {self.difference:.1e} (largest logit {self.largest:.3g})"
        )


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    frames: int,
    size: int | tuple[int, int] = 224,
    overwrite: bool = False,
) -> ExportReport:
    """Export a network for RGB clips of one length and size; any batch size.

    The file is written atomically, and only if it computes the network's logits for two random
    clips. ``model`` does not change; it is exported in eval mode and on the CPU.

    Args:
        model: a plain network, or a frame-flexible one, whose sub-network for ``frames`` is
            exported.
        path: the suffix selects the format: ``.pt2``, or one added with :func:`register_format`.
        frames: T.
        size: H and W in pixels, as one number or two.
        overwrite: replace an existing file.

    Returns:
        The report, printable.

    Raises:
        ValueError: no such format, or ``frames`` or ``size`` is less than 1.
        FileExistsError: the file exists and ``overwrite`` is false.
        ExportError: the logits of the file differ from the network's, or the file does not run.
    """
    path = Path(path)
    write = format_of(path)
    height, width = (size, size) if isinstance(size, int) else size
    if min(frames, height, width) < 1:
        raise ValueError(f"frames is {frames}, size {size}; expected at least 1 of each")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; choose another name or pass overwrite")

    active = None
    if isinstance(model, FrameFlexible):
        active = model.select(frames)
        network = extract(model, active)
    else:
        network = copy.deepcopy(model)
    network = network.cpu().eval()
    shape = (3, frames, height, width)
    clips = _random_clips(network, shape)

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file, torch.no_grad():
        run = write(network, clips[0], file)
        expected = torch.cat([network(clip) for clip in clips[1:]])
        found = torch.cat([_run_file(run, clip) for clip in clips[1:]])
        difference, largest = (found - expected).abs().max().item(), expected.abs().max().item()
        if not difference <= TOLERANCE * largest:  # also of NaN
            raise ExportError(
                f"the exported file differs from the network: by up to {difference:.1e}, where the "
                f"largest logit is {largest:.3g} and {TOLERANCE:g} of it is accepted. Nothing was "
                "written."
            )
    return ExportReport(path, shape, active, difference, largest)


def _run_file(run: Callable[[Tensor], Tensor], clip: Tensor) -> Tensor:
    """The logits of the written file; its runtime may raise any kind of error."""
    try:
        return run(clip)
    except Exception as error:
        raise ExportError(
            f"the exported file fails on a clip {tuple(clip.shape)}: {error}. A format must accept "
            "any batch size. Nothing was written."
        ) from error


def _random_clips(network: nn.Module, shape: tuple[int, ...]) -> list[Tensor]:
    """A clip to trace with, and those to compare, in the dtype of the network."""
    dtype = next((p.dtype for p in network.parameters()), torch.float32)
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, *shape, generator=generator).to(dtype)
        for batch in (TRACED_BATCH, *CHECKED_BATCHES)
    ]
