"""Evaluate a network at several frame counts: accuracy, sub-network used, cost.

Each video counts once for any number of processes. A video that cannot be decoded counts as wrong
and is listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.core import FrameFlexible, all_trained_frames
from ffn.devices import describe_measurement
from ffn.evaluation.collect import Outputs, collect, evaluating, gather, is_first, process_count
from ffn.evaluation.cost import count_macs, count_parameters, measure_latency, peak_memory
from ffn.evaluation.metrics import dataset_metrics
from ffn.evaluation.results import Predictions, Row, Sweep
from ffn.export import InferenceRunner


def evaluate(
    model: nn.Module,
    loader: DataLoader,
    *,
    precision: str = "fp32",
    batch_size: int | None = None,
    progress: bool = False,
) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
    """Compute the accuracy at every frame count of a loader.

    Every process calls this function with its own shard and receives the metrics of all videos.
    The state of the model is restored.

    Args:
        model: takes a clip, returns logits; not wrapped in DDP.
        loader: test batches of ``ffn.data.make_loader``: ``{"clips": {T: (B * V, C, T, H, W)},
            "label": (B,) or (B, K), "index": (B,), "ok": (B,), "skipped": reasons}``, clips uint8
            with V views of each video. The data set has ``records`` with the paths of the videos,
            ``preprocessing``, which normalizes clips, and ``protocol``.
        precision: "fp32", "bf16" or "fp16".
        batch_size: maximum number of clips per forward pass; by default the batch size of the
            loader, so that several views need no more memory than one.
        progress: show a progress bar.

    Returns:
        Per frame count ``top1``, ``top5``, ``mean_class`` in percent (with several labels per video
        ``map`` and ``f1``), and ``failed``, the number of videos that cannot be decoded; and the
        reason for each of these videos.

    Raises:
        FloatingPointError: a logit is NaN or infinite.
        VideoError: no video can be decoded.
        RuntimeError: the loader does not cover all videos of the data set.
        ValueError: the data set is empty, or a label is not a class of the model.
    """
    run = InferenceRunner(model, runtime="unfused", precision=precision)
    outputs = collect(model, loader, run, batch_size, keep_logits=False, progress=progress)
    metrics = {
        frames: dataset_metrics(column, outputs.label, outputs.labels)
        | {"failed": len(outputs.errors)}
        for frames, column in outputs.columns.items()
    }
    return metrics, outputs.errors


def sweep(
    model: nn.Module,
    loader: DataLoader,
    *,
    name: str = "model",
    trained_frames: Iterable[int] | None = None,
    precision: str = "fp32",
    runtime: str = "unfused",
    latency: bool = True,
    keep_logits: bool = False,
    batch_size: int | None = None,
    progress: bool = False,
) -> Sweep:
    """Compute accuracy and cost at every frame count of a loader.

    Every process calls this function with its own shard and receives the same result. Rank 0
    measures the cost.

    Args:
        model: takes a clip, returns logits; not wrapped in DDP. Its state is restored.
        loader: see :func:`evaluate`.
        name: of the network or its weights.
        trained_frames: frame counts that a plain network was trained at, or their ranges, for the
            figure; a frame-flexible network has its own.
        precision: "fp32", "bf16" or "fp16"; or, in one process, "auto": the fastest on this device.
        runtime: what runs the network, see :class:`ffn.export.InferenceRunner`.
        latency: also measure the latency of one clip.
        keep_logits: keep all logits on rank 0, for :func:`~ffn.evaluation.save_predictions`.
        batch_size: see :func:`evaluate`.
        progress: show a progress bar.

    Raises:
        FloatingPointError, RuntimeError: see :func:`evaluate`.
        ValueError: "auto" in several processes, which could choose differently; or as
            :func:`evaluate`.
        ImportError: a runtime is not installed.
    """
    if "auto" in (precision, runtime) and process_count() > 1:
        raise ValueError(
            f'precision is "{precision}", runtime "{runtime}" in several processes, which could '
            'choose differently; choose "fp32" or "bf16", and "torch"'
        )
    if isinstance(model, FrameFlexible):
        trained_frames = model.ranges
    if trained_frames is not None:
        trained_frames = all_trained_frames(trained_frames)
    run = InferenceRunner(model, runtime=runtime, precision=precision)
    outputs = collect(model, loader, run, batch_size, keep_logits=keep_logits, progress=progress)
    cost = None
    if is_first():
        packages = [run.runtime] if run.runtime in ("onnxruntime", "openvino") else []
        measured = describe_measurement(run.device, *packages)
        measured |= {"precision": run.precision, "runtime": run.runtime}
        cost = _rows(model, outputs, run if latency else None), measured
    rows, measured = gather(cost)[0]

    predictions = None
    if outputs.logits is not None:
        paths = tuple(str(record.path) for record in loader.dataset.records)
        predictions = Predictions(paths, outputs.label, outputs.ok, outputs.logits, outputs.labels)
    return Sweep(
        name=name,
        trained_frames=trained_frames,
        params=count_parameters(model),
        crop=next(iter(outputs.shapes.values()))[-2:],
        rows=rows,
        failed=outputs.errors,
        measured=measured,
        protocol=str(loader.dataset.protocol),
        predictions=predictions,
    )


def _rows(model: nn.Module, outputs: Outputs, run: InferenceRunner | None) -> tuple[Row, ...]:
    """Accuracy and cost per frame count; the latency is that of ``run``."""
    device, rows = next(model.parameters()).device, []
    for frames, column in outputs.columns.items():
        subnet = model.select(frames) if isinstance(model, FrameFlexible) else None
        clip = torch.zeros(1, *outputs.shapes[frames], device=device)
        row = Row(
            frames=frames,
            subnet=subnet,
            metrics=dataset_metrics(column, outputs.label, outputs.labels),
            gmacs=count_macs(model, clip) / 1e9,
            params=count_parameters(model, subnet),
            latency_ms=None if run is None else measure_latency(run, clip, model=model),
            videos=len(column),
            failed=len(outputs.errors),
            memory_mib=None if run is None else _memory(run, clip, model),
        )
        rows.append(row)
    return tuple(rows)


def _memory(run: InferenceRunner, clip: Tensor, model: nn.Module) -> float | None:
    """Peak memory in MiB of a forward pass on a GPU, besides the clip and the weights."""
    if clip.device.type != "cuda" or run.runtime == "onnxruntime":
        return None
    with evaluating(model), torch.inference_mode():
        return peak_memory(partial(run, clip), clip.device) / 2**20
