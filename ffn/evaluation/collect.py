"""Run a model over a data loader and gather the results and logits of all processes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.core import FrameFlexible
from ffn.data import VideoError
from ffn.evaluation.metrics import not_finite, video_results
from ffn.labels import LabelKind, SingleLabel, label_kind


@dataclass(frozen=True)
class Outputs:
    """Gathered results, row i for video i; the same on every process.

    Attributes:
        label: (N,), class indices; (N, K) with ones for several labels per video.
        ok: (N,), False where a video cannot be decoded.
        errors: for each video that cannot be decoded, the reason.
        columns: per frame count the results (N, ...), see `ffn.evaluation.metrics`.
        shapes: per frame count (C, T, H, W) of the clips.
        logits: per frame count (N, K) on rank 0, if they were kept.
        labels: the kind of labels, if the data set names it.
    """

    label: Tensor
    ok: Tensor
    errors: tuple[str, ...]
    columns: dict[int, Tensor]
    shapes: dict[int, tuple[int, ...]]
    logits: dict[int, Tensor] | None
    labels: LabelKind | None


@dataclass
class _Shard:
    """Results of one process: columns and logits per batch, clip shapes, decoding errors."""

    columns: list[dict[str, Tensor]] = field(default_factory=list)
    logits: list[dict[str, Tensor]] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


def collect(
    model: nn.Module,
    loader: DataLoader,
    run: Callable[[Tensor], Tensor],
    batch_size: int | None,
    *,
    keep_logits: bool,
    progress: bool,
) -> Outputs:
    """Run a model over the shard of this process and gather the results of all processes.

    ``run`` computes the logits of the model.

    Arguments and errors are those of :func:`ffn.evaluation.evaluate`. ``keep_logits`` also gathers
    the logits on rank 0.
    """
    own = _run(model, loader, run, batch_size, keep_logits, progress and is_first())
    shards = gather((merge(own.columns), own.shapes, own.errors))
    merged = merge([columns for columns, _, _ in shards])
    if not merged:
        raise ValueError("no videos to evaluate: the data set is empty")
    # Samplers that pad the last batch evaluate a video twice; it counts once.
    keep = torch.from_numpy(np.unique(merged["index"].numpy(), return_index=True)[1])
    merged = merge([merged], keep)
    columns = _results(merged)
    _check_finite(columns, merged["index"], loader)
    _check_complete(merged["index"], len(loader.dataset))

    errors = ChainMap(*(errors for _, _, errors in shards))
    if not merged["ok"].any():
        raise VideoError(
            f"none of {len(errors)} videos can be read; check data.root, and the videos with "
            f"ffn check_data. The first: {errors[0]}"
        )

    logits = gather_first(merge(own.logits)) if keep_logits else None
    return Outputs(
        label=merged["label"],
        ok=merged["ok"],
        columns=columns,
        errors=tuple(reason for _, reason in sorted(errors.items())),
        shapes=dict(ChainMap(*(shapes for _, shapes, _ in shards))),
        logits=None if logits is None else {int(t): x for t, x in merge(logits, keep).items()},
        labels=getattr(loader.dataset, "labels", None),
    )


def _run(
    model: nn.Module,
    loader: DataLoader,
    run: Callable[[Tensor], Tensor],
    batch_size: int | None,
    keep_logits: bool,
    progress: bool,
) -> _Shard:
    """Run a model over the batches of this process; stop at logits that are not finite."""
    device = next(model.parameters()).device
    normalize = loader.dataset.normalize
    shard = _Shard()
    bar = track(loader, "testing", total=len(loader), transient=True, disable=not progress)
    # A bar that is left open by an error may be collected by its own thread, which then hangs.
    with closing(bar), evaluating(model), torch.inference_mode():
        for batch in bar:
            columns = {key: batch[key] for key in ("index", "label", "ok")}
            shard.errors |= zip(
                batch["index"][~batch["ok"]].tolist(), batch["skipped"], strict=True
            )
            shard.columns.append(columns)
            shard.logits.append({})
            label = batch["label"].to(device)
            kind = getattr(loader.dataset, "labels", None) or label_kind(label.ndim == 2)
            for frames, clip in batch["clips"].items():
                shard.shapes[frames] = tuple(clip.shape[1:])
                parts = (
                    normalize(part.to(device, non_blocking=True))
                    for part in clip.split(batch_size or loader.batch_size or len(clip))
                )
                logits = video_logits(run, parts, videos=len(label), labels=kind)
                columns[f"result/{frames}"] = video_results(logits, label, batch["ok"], kind)
                if keep_logits:
                    readable = batch["ok"].view(-1, *[1] * (logits.ndim - 1))
                    shard.logits[-1][str(frames)] = logits.cpu().where(readable, torch.nan)
            if any(not_finite(column).any() for column in _results(columns).values()):
                break  # all processes raise together after gathering; otherwise the others hang
    return shard


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode; on exit, restore the mode and active count of every module."""
    training = [(module, module.training) for module in model.modules()]
    active = [(m, m.active) for m in model.modules() if isinstance(m, FrameFlexible)]
    model.eval()
    try:
        yield
    finally:
        for module, mode in training:  # one by one: a frozen norm may be in eval while training
            module.training = mode
        for module, count in active:
            module.activate(module.select(count))  # `interpolate` may have changed


def video_logits(
    run: Callable[[Tensor], Tensor],
    clips: Iterable[Tensor],
    videos: int,
    labels: LabelKind = SingleLabel,
) -> Tensor:
    """Run a network over the views of several videos and average the views of each video.

    The probabilities are averaged, as in SlowFast and UniFormer; the test of TSM averages
    logits.

    Args:
        run: takes clips (n, C, T, H, W), returns logits (n, K).
        clips: the views of all videos in parts, those of the first video first.
        videos: B; all have the same number of views.
        labels: one label per video (softmax), or several (sigmoid).

    Returns:
        (B, K) float32: the logits for one view, those of the mean probability for several.
    """
    logits = torch.cat([run(part).float() for part in clips])  # (B * V, K)
    views = len(logits) // videos
    if views == 1:
        return logits
    return labels.mean(logits.unflatten(0, (videos, views)), 1)


def gather(value: object) -> list:
    """Return the values of all processes in the order of their ranks."""
    if not _distributed():
        return [value]
    values: list = [None] * process_count()
    dist.all_gather_object(values, value)
    return values


def gather_first(value: object) -> list | None:
    """Return the values of all processes on rank 0, None on the others."""
    if not _distributed():
        return [value]
    values: list | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    return values


def is_first() -> bool:
    """Whether this is rank 0, or the only process."""
    return not _distributed() or dist.get_rank() == 0


def process_count() -> int:
    """Number of processes that test together."""
    return dist.get_world_size() if _distributed() else 1


def merge(shards: Sequence[Mapping[str, Tensor]], keep: Tensor | None = None) -> dict[str, Tensor]:
    """Concatenate the columns (n, ...) of several processes; one without videos has no columns.

    ``keep`` has the rows of the concatenation to keep, in their order; all by default.
    """
    shards = [shard for shard in shards if shard]
    names = shards[0] if shards else ()
    merged = {name: torch.cat([shard[name] for shard in shards]) for name in names}
    return merged if keep is None else {name: column[keep] for name, column in merged.items()}


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _results(columns: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """The results by frame count, ascending."""
    names = [name for name in columns if name.startswith("result/")]
    counts = sorted(int(name.removeprefix("result/")) for name in names)
    return {frames: columns[f"result/{frames}"] for frames in counts}


def _check_finite(columns: Mapping[int, Tensor], index: Tensor, loader: DataLoader) -> None:
    for frames, column in columns.items():
        bad = index[not_finite(column)].tolist()
        if bad:
            raise FloatingPointError(
                f"logits are NaN or infinite at {frames} frames, first for video {bad[0]} "
                f"({loader.dataset.records[bad[0]].path}). Check that the weights belong to this "
                'model; in fp16, where large activations overflow, use precision="bf16"'
            )


def _check_complete(index: Tensor, videos: int) -> None:
    missing = sorted(set(range(videos)) - set(index.tolist()))
    if missing:
        raise RuntimeError(
            f"{len(missing)} of {videos} videos were not evaluated, first video {missing[0]}. Use "
            "a sampler that covers all videos over all processes, with drop_last=False"
        )
