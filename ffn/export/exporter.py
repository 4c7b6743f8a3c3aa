"""Export a network to a file, and compare the file with the network."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible
from ffn.export.deployed import DeployedNetwork, dtype_of
from ffn.export.formats import LEAST_FRAMES, ExportError, find_format, onnx, pt2
from ffn.export.fuse import TOLERANCE, fuse, plain_copy
from ffn.export.int8 import Calibration, Int8Report, quantize
from ffn.files import atomic_write, refuse_existing, write_text

# A few pixels of resized frames are rounded differently by other runtimes.
RESIZED_TOLERANCE = 1e-2  # as TOLERANCE
TRACED_BATCH, CHECKED_BATCHES = 2, (1, 3)


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    Attributes:
        path: the file.
        difference: largest absolute difference of an output from the network's.
        largest: largest absolute output of the network.
        inputs: shapes of the inputs that were compared.
        metadata: what the file states about itself.
        int8: the comparison of int8 with fp32, of a quantized file; ``difference`` is that of the
            file before quantization.
    """

    path: Path
    difference: float
    largest: float
    inputs: tuple[tuple[int, ...], ...]
    metadata: Mapping[str, Any]
    int8: Int8Report | None = None

    def __str__(self) -> str:
        given, output = self.metadata["input"], self.metadata["output"]["name"]
        shape = ", ".join(map(str, given["shape"]))
        active = self.metadata.get("sub_network")
        sub = f", sub-network of {active} frames" if active else ""
        quantized = f"\n{self.int8}" if self.int8 else ""
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:.2f} MB, {given['content']} ({shape})"
            f"{sub}; largest difference of the {output} {self.difference:.1e} (largest "
            f"{self.largest:.3g}, {len(self.inputs)} inputs){quantized}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The metadata and the comparison, as plain values for JSON."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        int8 = {"int8": asdict(self.int8)} if self.int8 else {}
        check = {
            "largest_difference": self.difference,
            "largest_output": self.largest,
            "inputs": [" x ".join(map(str, shape)) for shape in self.inputs],
            "torch": str(torch.__version__),
        }
        named = {"file": self.path.name, "sha256": digest}
        return {**named, **self.metadata, **int8, "compared_with_network": check}


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    frames: int | None = None,
    size: int | tuple[int, int] | None = None,
    preprocess: bool = False,
    probabilities: bool = False,
    dynamic_frames: bool = False,
    calibration: Calibration | None = None,
    record: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Export a network to a file that runs without ffn, for any batch size.

    The file is written atomically, and only if it computes the network's logits for random inputs.
    ``FILE.json`` next to it has its metadata, hash and the comparison. ``model`` does not change;
    it is exported in eval mode and on the CPU.

    Args:
        model: a plain network, or a frame-flexible one, whose sub-network for ``frames`` is
            exported.
        path: the suffix selects the format: ``.pt2`` (torch.export), ``.onnx``, ``.aoti.pt2``
            (AOTInductor), or one added with :func:`~ffn.export.register_format`.
        frames: T; default: that of :func:`ffn.fuse`, of a network from it.
        size: H and W of the clip in pixels, as one number or two; default: the crop of the record,
            or 224.
        preprocess: the file takes uint8 RGB frames (B, T, H, W, 3) of any size; it resizes, crops
            and normalizes them as ``ffn.data.EvalTransform`` and ``ffn.data.Normalize``.
        probabilities: the file returns probabilities instead of logits.
        dynamic_frames: the file takes clips of any length; the sub-network is that for ``frames``.
        calibration: clips for static int8 quantization; ONNX only.
        record: of the weights, as ``WeightRecord.to_dict`` returns it; default: that of a network
            from :func:`ffn.load`.
        overwrite: replace an existing file.

    Returns:
        The report, printable.

    Raises:
        ValueError: no such format; ``frames`` or ``size`` is less than 1, ``preprocess`` without a
            record, or a record of another number of classes.
        ImportError: the format needs an extra that is not installed.
        FileExistsError: the file or its ``.json`` exists and ``overwrite`` is false.
        ExportError: the format cannot express the network, the file does not run, or its logits
            differ from the network's.
    """
    path = Path(path)
    if frames is None and hasattr(model, "fusion"):
        frames = model.fusion.frames
    if not isinstance(frames, int):
        raise ValueError(f"frames is {frames!r}; expected the T of the clips, 1 or more")
    described = Path(f"{path}.json")
    refuse_existing([path, described], overwrite)
    network = deploy(
        model,
        frames,
        path,
        size=size,
        preprocess=preprocess,
        probabilities=probabilities,
        dynamic_frames=dynamic_frames,
        record=record,
    )
    if calibration is None:
        report = write_checked(network, path)
    else:
        report = _write_int8(network, path, calibration)
    write_text(described, json.dumps(report.to_dict(), indent=1) + "\n")
    return report


def deploy(
    model: nn.Module,
    frames: int,
    path: Path,
    *,
    fold: bool = True,
    size: int | tuple[int, int] | None = None,
    preprocess: bool = False,
    probabilities: bool = False,
    dynamic_frames: bool = False,
    record: Mapping[str, Any] | None = None,
) -> DeployedNetwork:
    """The network that a file will contain; arguments and errors as :func:`export`.

    Without ``fold``, norms and weight alterations stay; the model is then a frame-flexible network.
    """
    if record is None:  # that of ffn.load, if it made the network
        known = getattr(model, "record", None)
        record = known.to_dict() if known else {}
    shape = (3, frames, *_clip_size(frames, size, record, preprocess))
    if isinstance(model, FrameFlexible) and model.frame_dim != 2:
        raise ExportError(
            f"files take clips (B, C, T, H, W), and this network has its frames in dimension "
            f"{model.frame_dim}. Put ffn.extract(model, frames) into a module that permutes the "
            "clip, and export that module"
        )
    if fold:
        example = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))
        # Other runtimes choose operators themselves; torch.export cannot trace these for any T.
        kernels = find_format(path) is pt2 and not dynamic_frames
        network = fuse(model, frames, example=example.to(dtype_of(model)), kernels=kernels)
        active = network.fusion.active
    else:
        network, active = plain_copy(model, frames)
    deployed = DeployedNetwork(
        network.cpu(),
        shape=shape,
        record=record,
        active=active,
        preprocess=preprocess,
        probabilities=probabilities,
        any_frames=dynamic_frames,
    ).eval()
    deployed.fold_norms = fold
    _check_classes(deployed, record)
    return deployed


def write_checked(network: DeployedNetwork, path: Path) -> ExportReport:
    """Write a file atomically, and only if its outputs are those of the network."""
    # torch.export fixes sizes of 1 and sizes that are equal in its example.
    frames = network.shape[1]
    traced = max(frames, LEAST_FRAMES[-1] + 1) if network.any_frames else frames
    write = find_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file, torch.no_grad():
        run = write(network, network.example(TRACED_BATCH, frames=traced, seed=1), file)
        inputs = _checked_inputs(network)
        difference, largest = _compare(run, network, inputs)
    shapes = tuple(tuple(x.shape) for x in inputs)
    return ExportReport(path, difference, largest, shapes, network.metadata)


def _write_int8(network: DeployedNetwork, path: Path, calibration: Calibration) -> ExportReport:
    if find_format(path) is not onnx:
        raise ValueError(f"{path}: int8 needs the format onnx")
    with tempfile.TemporaryDirectory() as folder:
        report = write_checked(network, Path(folder) / "fp32.onnx")
        model, int8 = quantize(report.path, calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())
    return replace(report, path=path, int8=int8)


def _check_classes(network: DeployedNetwork, record: Mapping[str, Any]) -> None:
    """Raise ValueError for a record of other classes, as after ``reset_classifier``."""
    stated = record.get("num_classes") or len(record.get("classes") or ())
    stated += bool(stated and record.get("labels"))  # the blank of texts
    with torch.no_grad():
        found = network(network.example(1)).shape[-1] if stated else stated
    if found != stated:
        raise ValueError(
            f"the network has {found} outputs, and its record {stated} classes, so that the file "
            'would name wrong ones. Pass the record of this network, e.g. record={"classes": '
            "[...]}, or record={} for a file that names none"
        )


def _clip_size(
    frames: int, size: int | tuple[int, int] | None, record: Mapping[str, Any], preprocess: bool
) -> tuple[int, int]:
    if preprocess and size is not None:
        raise ValueError(f"size is {size}; with preprocess, it is the crop of the record. Omit it")
    if size is None:
        size = record.get("preprocessing", {}).get("crop", 224)
    height, width = (size, size) if isinstance(size, int) else size
    if min(frames, height, width) < 1:
        raise ValueError(f"frames is {frames}, size {size}; expected at least 1 of each")
    return height, width


def _checked_inputs(network: DeployedNetwork) -> list[Tensor]:
    """Inputs of several batch sizes; also of several T and frame sizes, where these may vary."""
    frames = network.shape[1]
    counts = sorted({network.least_frames, frames, 2 * frames}) if network.any_frames else [frames]
    pairs = [(batch, count) for count in counts for batch in CHECKED_BATCHES]
    if network.transform is not None:  # frames as wide as high, higher, and wider
        pairs += pairs[:1]
    return [network.example(b, frames=t, seed=seed) for seed, (b, t) in enumerate(pairs)]


def _compare(
    run: Callable[[Tensor], Tensor], network: DeployedNetwork, inputs: Sequence[Tensor]
) -> tuple[float, float]:
    """Largest difference of the file's outputs from the network's, and the largest output."""
    expected = [network(x) for x in inputs]
    largest, differences = max(y.abs().max().item() for y in expected), []
    for index, (x, y) in enumerate(zip(inputs, expected, strict=True)):
        resized = network.transform is not None and index > 0
        tolerance = RESIZED_TOLERANCE if resized else TOLERANCE
        try:
            difference = (run(x) - y).abs().max().item()
        except Exception as error:  # a runtime may raise any kind
            raise ExportError(
                f"the exported file fails on a clip {tuple(x.shape)}: {error}. A format must "
                "accept any batch size. Nothing was written."
            ) from error
        if not difference <= tolerance * largest:  # also of NaN
            raise ExportError(
                f"the exported file differs from the network: by up to {difference:.1e} for an "
                f"input {tuple(x.shape)}, where the largest output is {largest:.3g} and "
                f"{tolerance:g} of it is accepted. Nothing was written."
            )
        differences.append(difference)
    return max(differences), largest
