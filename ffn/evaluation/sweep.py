"""One network at many frame counts: who answered, how well, at what cost.

Each video counts exactly once, whatever the number of processes; a video that cannot be decoded
counts as wrong and is listed.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.core import FrameFlexible, check_trained_frames, nearest
from ffn.data import Normalise
from ffn.evaluation.cost import (
    count_macs,
    count_parameters,
    describe_device,
    inference,
    measure_latency,
)
from ffn.evaluation.metrics import (
    NOT_FINITE,
    UNANSWERED,
    accuracy,
    first_of_each,
    gather,
    gather_first,
    label_places,
    merge,
)
from ffn.evaluation.results import Predictions, Row, Sweep
from ffn.evaluation.state import evaluating
from ffn.evaluation.views import video_logits


@dataclass(frozen=True)
class _Answers:
    """What all processes together found, row i for video i; the same on every process."""

    label: Tensor
    ok: Tensor
    errors: tuple[str, ...]
    places: dict[int, Tensor]
    shapes: dict[int, tuple[int, ...]]  # (C, T, H, W) of the clips per frame count
    logits: dict[int, Tensor] | None


def evaluate(
    model: nn.Module,
    loader: DataLoader,
    *,
    precision: str = "fp32",
    batch_size: int | None = None,
    progress: bool = False,
) -> dict[int, dict[str, float]]:
    """Compute the accuracy at every frame count that the loader gives, and nothing else.

    Every process calls it with its own shard; all get the same numbers. The model stays as it is.

    Args:
        model: takes a clip, returns logits; not wrapped in DDP.
        loader: batches as ``ffn.data.make_loader`` gives for testing: ``{"clips": {T: (B * V, C,
            T, H, W)}, "label": (B,), "index": (B,), "ok": (B,), "skipped": reasons}``, clips uint8
            with V views of each video; the data set has ``records``, which name the videos,
            ``preprocessing``, by which clips are normalised, and ``protocol``.
        precision: "fp32", "bf16" or "fp16".
        batch_size: clips per forward, at most; by default the loader's, so that many views need
            no more memory than one.
        progress: show a progress bar.

    Returns:
        Per frame count ``top1``, ``top5``, ``mean_class`` in percent, and ``failed``, the number of
        videos that could not be decoded.

    Raises:
        FloatingPointError: the model returned NaN or an infinity.
        RuntimeError: some videos of the data set never came.
        ValueError: the data set is empty, or its labels are no classes of the model.
    """
    answers = _collect(model, loader, precision, batch_size, keep_logits=False, progress=progress)
    return {
        frames: {**accuracy(places, answers.label), "failed": len(answers.errors)}
        for frames, places in answers.places.items()
    }


def sweep(
    model: nn.Module,
    loader: DataLoader,
    *,
    name: str = "model",
    trained_frames: Iterable[int] | None = None,
    precision: str = "fp32",
    latency: bool = True,
    keep_logits: bool = False,
    batch_size: int | None = None,
    progress: bool = False,
) -> Sweep:
    """Test a network at every frame count that the loader gives.

    Every process calls it with its own shard and gets the same result; cost is measured on rank 0.

    Args:
        model: takes a clip, returns logits; not wrapped in DDP. It stays as it is.
        loader: as for :func:`evaluate`.
        name: of the network or its weights.
        trained_frames: what a plain network was trained at, to be marked in the figure; a
            frame-flexible one knows its own.
        precision: "fp32", "bf16" or "fp16".
        latency: also measure the latency of one clip.
        keep_logits: keep all logits, on rank 0, for :func:`save_predictions`.
        batch_size: as for :func:`evaluate`.
        progress: show a progress bar.

    Raises:
        FloatingPointError, RuntimeError, ValueError: as :func:`evaluate`.
    """
    flexible = isinstance(model, FrameFlexible)
    if flexible:
        trained_frames = model.trained_frames
    elif trained_frames is not None:
        trained_frames = check_trained_frames(trained_frames)
    device = _device(model)
    answers = _collect(
        model, loader, precision, batch_size, keep_logits=keep_logits, progress=progress
    )

    rows = None
    if _is_first():
        rows = []
        for frames, places in answers.places.items():
            subnet = nearest(frames, trained_frames) if flexible else None
            clip = torch.zeros(1, *answers.shapes[frames], device=device)
            row = Row(
                frames=frames,
                subnet=subnet,
                **accuracy(places, answers.label),
                gmacs=sum(count_macs(model, clip).values()) / 1e9,
                params=count_parameters(model, subnet),
                latency_ms=measure_latency(model, clip, precision=precision) if latency else None,
                videos=len(places),
                failed=len(answers.errors),
            )
            rows.append(row)
    rows, measured = gather((rows, _measured(device, precision)))[0]

    predictions = None
    if answers.logits is not None:
        paths = tuple(str(record.path) for record in loader.dataset.records)
        predictions = Predictions(paths, answers.label, answers.ok, answers.logits)
    return Sweep(
        name=name,
        trained_frames=trained_frames,
        params=count_parameters(model),
        crop=next(iter(answers.shapes.values()))[-2:],
        rows=tuple(rows),
        failed=answers.errors,
        measured=measured,
        protocol=str(loader.dataset.protocol),
        predictions=predictions,
    )


def _collect(
    model: nn.Module,
    loader: DataLoader,
    precision: str,
    batch_size: int | None,
    *,
    keep_logits: bool,
    progress: bool,
) -> _Answers:
    """Run the model over this process's shard and bring the answers of all processes together."""
    device = _device(model)
    normalise = Normalise(loader.dataset.preprocessing)
    batches: list[dict[str, Tensor]] = []
    logits: list[dict[str, Tensor]] = []
    shapes: dict[int, tuple[int, ...]] = {}
    errors: dict[int, str] = {}
    bar = track(
        loader, "testing", total=len(loader), transient=True, disable=not (progress and _is_first())
    )
    with evaluating(model), inference(device, precision):
        for batch in bar:
            batches.append({key: batch[key] for key in ("index", "label", "ok")})
            errors |= zip(batch["index"][~batch["ok"]].tolist(), batch["skipped"], strict=True)
            logits.append({})
            label = batch["label"].to(device)
            for frames, clip in batch["clips"].items():
                shapes[frames] = tuple(clip.shape[1:])
                parts = (
                    normalise(part.to(device, non_blocking=True))
                    for part in clip.split(batch_size or loader.batch_size or len(clip))
                )
                answer = video_logits(model, parts, videos=len(label))
                places = label_places(answer, label).cpu()
                batches[-1][f"place/{frames}"] = places.where(batch["ok"], UNANSWERED)
                if keep_logits:
                    logits[-1][str(frames)] = answer.cpu().where(batch["ok"][:, None], torch.nan)
            if any((column == NOT_FINITE).any() for column in _places(batches[-1]).values()):
                break  # an error; raised on all processes together, or the others hang

    shards = gather((merge(batches), shapes, errors))
    merged = merge([shard for shard, _, _ in shards])
    if not merged:
        raise ValueError("no videos to evaluate: the data set is empty")
    keep = first_of_each(merged["index"])
    merged = merge([merged], keep)
    places = _places(merged)
    _check_finite(places, merged["index"], loader)
    _check_complete(merged["index"], len(loader.dataset))

    columns = gather_first(merge(logits)) if keep_logits else None
    return _Answers(
        label=merged["label"],
        ok=merged["ok"],
        places=places,
        errors=tuple(reason for _, reason in sorted(ChainMap(*(e for _, _, e in shards)).items())),
        shapes=dict(ChainMap(*(own for _, own, _ in shards))),
        logits=None if columns is None else {int(t): x for t, x in merge(columns, keep).items()},
    )


def _places(columns: dict[str, Tensor]) -> dict[int, Tensor]:
    """The places by frame count, ascending."""
    names = [name for name in columns if name.startswith("place/")]
    counts = sorted(int(name.removeprefix("place/")) for name in names)
    return {frames: columns[f"place/{frames}"] for frames in counts}


def _check_finite(places: dict[int, Tensor], index: Tensor, loader: DataLoader) -> None:
    for frames, column in places.items():
        bad = index[column == NOT_FINITE].tolist()
        if bad:
            raise FloatingPointError(
                f"the model returned NaN or an infinity at {frames} frames, first for video "
                f"{bad[0]} ({loader.dataset.records[bad[0]].path}); are the weights those of this "
                'model? In fp16 large activations overflow: try precision="bf16".'
            )


def _check_complete(index: Tensor, videos: int) -> None:
    missing = sorted(set(range(videos)) - set(index.tolist()))
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {videos} videos were never tested, first video {missing[0]}; use a "
            "sampler that gives each process its own share and leaves none out (drop_last=False)"
        )


def _measured(device: torch.device, precision: str) -> dict[str, Any]:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("frame-flexible", "timm"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # run from a source tree, or a network that needs no timm
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": describe_device(device),
        "precision": precision,
        "versions": versions,
    }


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _is_first() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
        torch.distributed.get_rank() == 0
    )
