"""Static int8 quantization of ONNX files by ``onnxruntime.quantization``, and its error."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ffn.export.formats import ExportError, Run, open_session, require

if TYPE_CHECKING:
    from onnx import ModelProto

HEAVY = ("Conv", "MatMul")
PERCENTILE = 99.99  # % of the values of an activation that its range holds


@dataclass(frozen=True)
class Calibration:
    """Clips for static quantization.

    Attributes:
        clips: inputs of the file (1, …), which set the ranges of the activations.
        held_out: other inputs with their labels, to compare int8 with fp32.
        max_difference: largest accepted RMS difference of the outputs on ``held_out``, relative to
            the standard deviation of fp32's.
    """

    clips: Sequence[Tensor]
    held_out: Iterable[tuple[Tensor, int]]
    max_difference: float = 0.15


@dataclass(frozen=True)
class Int8Report:
    """int8 against fp32 on held-out clips.

    Attributes:
        clips: their number.
        difference: RMS difference of the outputs, relative to the standard deviation of fp32's.
        agreement: share of clips with the same top class, in %.
        top1_fp32: accuracy of the file before quantization, in %.
        top1_int8: accuracy after it, in %.
    """

    clips: int
    difference: float
    agreement: float
    top1_fp32: float
    top1_int8: float

    def __str__(self) -> str:
        return (
            f"int8 on {self.clips} held-out clips: top-1 {self.top1_int8:.2f} % (fp32 "
            f"{self.top1_fp32:.2f} %), same class in {self.agreement:.2f} %, RMS difference "
            f"{self.difference:.3f} of the standard deviation"
        )


def quantize(source: Path, calibration: Calibration) -> tuple[ModelProto, Int8Report]:
    """Quantize an ONNX file: weights per channel, activations per tensor, in QDQ format.

    The metadata of the model has the report as ``int8``.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ExportError: the difference from fp32 is larger than accepted.
    """
    original = require("onnx").load(source)
    with redirect_stdout(io.StringIO()):  # it prints every step
        model = _quantize(source, original, calibration.clips)
    del model.metadata_props[:]
    model.metadata_props.extend(original.metadata_props)
    report = _compare(open_session(original), open_session(model), calibration)
    if not report.difference <= calibration.max_difference:
        raise ExportError(
            f"int8 changes the outputs too much: {report}. {calibration.max_difference:g} of the "
            "standard deviation is accepted. Calibrate with more clips, or export fp32. Nothing "
            "was written."
        )
    model.metadata_props.add(key="int8", value=json.dumps(asdict(report)))
    return model, report


def _quantize(source: Path, model: ModelProto, clips: Sequence[Tensor]) -> ModelProto:
    quantization = require("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):
        """Gives the clips that `set_range` names."""

        def __len__(self) -> int:
            return len(clips)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.indices = iter(range(start_index, end_index))

        def get_next(self) -> dict[str, Any] | None:
            i = next(self.indices, None)
            return None if i is None else {model.graph.input[0].name: clips[i].numpy()}

    # Quantized residual sums double the error of a transformer; they are most of the gain in a CNN.
    transformer = any(node.op_type == "LayerNormalization" for node in model.graph.node)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantization.quantize_static(
            source,
            path,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            op_types_to_quantize=list(HEAVY) if transformer else None,
            nodes_to_exclude=_ends(model),
            calibrate_method=quantization.CalibrationMethod.Percentile,
            # The activations of one clip at a time are in memory.
            extra_options={"CalibPercentile": PERCENTILE, "CalibStridedMinMax": 1},
        )
        return require("onnx").load(path)


def _ends(model: ModelProto) -> list[str]:
    """Names of the nodes before the first heavy layer, and of the classifier and what follows.

    Logits larger than those of the calibration clips would be cut off.
    """
    nodes = list(model.graph.node)
    first = next((i for i, node in enumerate(nodes) if node.op_type in HEAVY), 0)
    last = max((i for i, node in enumerate(nodes) if node.op_type == "Gemm"), default=len(nodes))
    return [node.name for node in (*nodes[:first], *nodes[last:])]


def _compare(fp32: Run, int8: Run, calibration: Calibration) -> Int8Report:
    rows = [(fp32(clip), int8(clip), torch.tensor([label])) for clip, label in calibration.held_out]
    expected, found, label = (torch.cat(column) for column in zip(*rows, strict=True))

    def share(one: Tensor, other: Tensor) -> float:
        return 100 * (one == other).float().mean().item()

    return Int8Report(
        clips=len(rows),
        difference=((found - expected).square().mean().sqrt() / expected.std()).item(),
        agreement=share(expected.argmax(1), found.argmax(1)),
        top1_fp32=share(expected.argmax(1), label),
        top1_int8=share(found.argmax(1), label),
    )
