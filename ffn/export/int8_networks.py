"""Run a network in int8 by ONNX Runtime, with one quantized file per frame count."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ffn.export.exporter import export
from ffn.export.formats import Run, require
from ffn.export.int8 import Calibration, Int8Report
from ffn.export.onnx_format import open_session

Calibrate = Callable[[int, tuple[int, int]], Calibration]


class Int8Networks:
    """Runs the sub-network for the T of a clip as ``ffn.export`` quantizes it, on the CPU.

    The first clip of each T exports, calibrates and compares a file, which takes seconds to
    minutes. The files are temporary.

    Args:
        model: in eval mode, on the CPU.
        calibrate: calibration clips of T frames of H x W pixels, for T and (H, W).

    Attributes:
        precision: "int8".
        reports: per T, the comparison of int8 with fp32 on the held-out calibration clips.
    """

    precision = "int8"

    def __init__(self, model: nn.Module, calibrate: Calibrate) -> None:
        require("onnxruntime")
        self.reports: dict[int, Int8Report] = {}
        self._model, self._calibrate = model, calibrate
        self._runs: dict[int, Run] = {}

    def __call__(self, clip: Tensor) -> Tensor:
        """Logits (B, K) in fp32 of clips (B, C, T, H, W).

        Raises:
            ImportError, ExportError, ValueError: see :func:`ffn.export`; of the first clip of a T.
        """
        frames = clip.shape[2]
        if frames not in self._runs:
            self._runs[frames] = self._build(clip)
        return self._runs[frames](clip)

    def _build(self, clip: Tensor) -> Run:
        frames, size = clip.shape[2], tuple(clip.shape[3:])
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode(False):
            report = export(
                self._model,
                Path(folder) / "int8.onnx",
                frames=frames,
                size=size,
                calibration=self._calibrate(frames, size),
            )
            run = open_session(require("onnx").load(report.path))
        self.reports[frames] = report.int8
        return run
