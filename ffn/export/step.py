"""Export the step of a stream: a frame and the state before to logits and the state after."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffn.export.deployed import DeployedNetwork
from ffn.export.exporter import ExportReport
from ffn.export.formats import ExportError, find_format
from ffn.export.fuse import TOLERANCE
from ffn.export.streams import Stream
from ffn.files import atomic_write, refuse_existing, write_text

COMPARED = 5  # frames


class StepNetwork(DeployedNetwork):
    """The step of a stream, for its stride, from the network of :class:`ffn.export.Stream`.

    Args:
        stream: on a CPU; its window and stride.
        size: height and width of a frame.
        record: of the weights, as ``WeightRecord.to_dict`` returns it.
    """

    def __init__(self, stream: Stream, size: int, record: Mapping[str, Any]) -> None:
        network, kept = stream.network()
        report = getattr(network, "fusion", None)
        active = report.active if report else None
        super().__init__(network, shape=(3, 1, size, size), record=record, active=active)
        self._kept, self._options = kept, (stream.stride, stream.window)
        probe = stream.copy()
        probe.reset()
        probe.step(torch.zeros(1, 3, size, size))
        self.sizes = [tuple(x.shape[1:]) for x in probe.state_dict().values()]
        self.input_name = self.metadata["input"]["name"] = "frame"
        self.input_names = [self.input_name, *(f"state.{name}" for name in self._kept)]
        self.output_names = [self.output_name, *(f"next.{name}" for name in self._kept)]
        self.metadata["input"] |= {"shape": self.input_shape, "content": "normalized frames"}
        for key in ("frames", "any_frames", "sampling"):  # of clips
            self.metadata.pop(key, None)
        states = zip(self._kept, self.sizes, strict=True)
        self.metadata["stream"] = {
            "stride": stream.stride,
            "window": stream.window,
            "state": {name: ["B", *shape] for name, shape in states},
            "start": "zeros, float32",
            "next": "the output next.NAME is the input state.NAME of the next frame",
        }

    def forward(self, frame: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Frames (B, C, H, W) and their state to logits (B, K) and the next state."""
        kept = [*self._kept.values()]
        before = dict(zip(kept, state, strict=True))
        with self.network.length.streaming(*self._options, before) as after:
            logits = self.network(frame[:, :, None])
        # Programs of AOTInductor take strides for granted: those of zeros at the start.
        return logits, *(after[module].contiguous() for module in kept)

    @property
    def input_shape(self) -> list[int | str]:
        """The shape of a frame."""
        channels, _, height, width = self.shape
        return ["B", channels, height, width]

    @property
    def dynamic_shapes(self) -> tuple[Any, ...]:
        """The batch, of each input."""
        batch = {0: torch.export.Dim.DYNAMIC}
        return batch, tuple(batch for _ in self._kept)

    def start(self, batch: int, seed: int) -> tuple[Tensor, ...]:
        """A random frame, and the state at the start of a stream."""
        frame = self.example(batch, seed=seed)[:, :, 0]
        return frame, *(frame.new_zeros(batch, *shape) for shape in self.sizes)


def export_step(
    stream: Stream,
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    record: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Export the step of a stream at its stride to a file that runs without ffn.

    Inputs of the file are a normalized frame (B, C, H, W) and tensors of the state, zeros at the
    start; outputs are logits (B, K) and the state for the next frame. ``FILE.json`` has their names
    and shapes. The file is written if it computes the logits of the stream for five frames.

    Args:
        stream: of :func:`ffn.stream`; it does not change. The file is in fp32.
        path: as :func:`ffn.export`.
        size: height and width of a frame; default: the crop of the record, or 224.
        record: as :func:`ffn.export`.
        overwrite: replace an existing file.

    Raises:
        ValueError, FileExistsError, ImportError, ExportError: as :func:`ffn.export`.
    """
    path = Path(path)
    described = Path(f"{path}.json")
    refuse_existing([path, described], overwrite)
    if record is None:
        record = stream.record.to_dict() if stream.record else {}
    size = size or record.get("preprocessing", {}).get("crop", 224)
    stream = stream.on_cpu()
    network = StepNetwork(stream, size, record).eval()
    write = find_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file, torch.no_grad():
        run = write(network, network.start(2, seed=1), file)
        given = network.start(3, seed=0)
        largest, differences = 0.0, []
        for seed in range(COMPARED):
            frame = network.start(3, seed)[0]
            logits, *state = run(frame, *given[1:])
            right = stream.step(frame)
            given = frame, *state
            largest = max(largest, right.abs().max().item())
            differences.append((logits - right).abs().max())
        difference = torch.stack(differences).max().item()  # NaN if one is
        if not difference <= TOLERANCE * largest:
            raise ExportError(
                f"the exported step differs from the stream by up to {difference:.1e}, where the "
                f"largest logit is {largest:.3g} and {TOLERANCE:g} of it is accepted. Nothing was "
                "written."
            )
    shapes = (tuple(frame.shape),) * COMPARED
    report = ExportReport(path, difference, largest, shapes, network.metadata)
    write_text(described, json.dumps(report.to_dict(), indent=1) + "\n")
    return report
