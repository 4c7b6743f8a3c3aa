"""Accuracy of logits, and the gathering that keeps it exact over several processes.

Everything is decided by one integer per video, the *place* of its label: how many classes the model
puts before it. Places are small, so each process sends its own and all compute the same metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

UNANSWERED = torch.iinfo(torch.int64).max  # place of a video that could not be decoded: wrong
NOT_FINITE = -1  # place of a video whose logits are NaN or infinite: an error, raised later


def label_places(logits: Tensor, label: Tensor) -> Tensor:
    """Return how many classes stand before each label, 0 if it is the model's first choice.

    Of two classes with equal logits the one with the smaller index stands first.

    Args:
        logits: (B, K).
        label: (B,), class indices.

    Returns:
        (B,) int64; ``NOT_FINITE`` where a row of logits holds NaN or an infinity.

    Raises:
        ValueError: logits are no matrix, or a label is no class of the model.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits have shape {tuple(logits.shape)}; expected (B, K)")
    classes = logits.shape[1]
    if label.numel() and not 0 <= int(label.min()) <= int(label.max()) < classes:
        raise ValueError(
            f"labels reach from {int(label.min())} to {int(label.max())}, the model knows classes "
            f"0 to {classes - 1}; are model and annotations of the same data set?"
        )
    own = logits.gather(1, label[:, None])  # (B, 1)
    smaller = torch.arange(classes, device=logits.device) < label[:, None]  # (B, K)

    places = ((logits > own) | ((logits == own) & smaller)).sum(1)

    return torch.where(logits.isfinite().all(1), places, NOT_FINITE)


def accuracy(places: Tensor, label: Tensor) -> dict[str, float]:
    """Compute the metrics of a data set, in percent.

    Args:
        places: (N,), of every video; see :func:`label_places`. ``UNANSWERED`` counts as wrong.
        label: (N,), their classes.

    Returns:
        ``top1``; ``top5``, which among five classes or fewer is the share of answered videos; and
        ``mean_class``, the top-1 accuracy per class, averaged over the classes that occur.

    Raises:
        ValueError: there is no video.
    """
    if not len(label):
        raise ValueError("no videos to evaluate: the data set is empty")
    right = (places == 0).double()
    per_class = torch.bincount(label, right) / torch.bincount(label)  # 0 / 0 for absent classes
    return {
        "top1": 100 * float(right.mean()),
        "top5": 100 * float((places < 5).double().mean()),
        "mean_class": 100 * float(per_class.nanmean()),
    }


def gather(value: object) -> list:
    """Return the value of every process, in the order of their ranks; alone, that of this one."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_first(value: object) -> list | None:
    """Return the value of every process to rank 0, None to the others."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values)
    return values


def merge(shards: Sequence[Mapping[str, Tensor]], keep: Tensor | None = None) -> dict[str, Tensor]:
    """Concatenate the columns of several processes; a process without videos sends no column.

    Args:
        shards: per process, columns (n, ...) by name.
        keep: rows of the concatenation to keep, in that order; all by default.
    """
    shards = [shard for shard in shards if shard]
    names = shards[0] if shards else ()
    merged = {name: torch.cat([shard[name] for shard in shards]) for name in names}
    return merged if keep is None else {name: column[keep] for name, column in merged.items()}


def first_of_each(index: Tensor) -> Tensor:
    """Return the rows where each index occurs first, ascending by index.

    Samplers that pad the last batch evaluate a video twice; it counts once.
    ``[3, 1, 3, 0]`` gives rows ``[3, 1, 0]``.
    """
    index, rows = index.sort(stable=True)
    new = torch.ones_like(index, dtype=torch.bool)
    new[1:] = index[1:] != index[:-1]
    return rows[new]
