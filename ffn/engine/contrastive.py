"""Learn without labels that clips of one video at several frame counts show the same.

SimCLR (Chen et al. 2020, arXiv 2002.05709), whose two views of an image are here two views of the
same span of a video, with different numbers of frames, crops and colors. Left out: its blur, and
LARS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.engine.distributed import gather_rows
from ffn.engine.task_base import ConvertedTask, register_task
from ffn.engine.task_options import ContrastiveOptions
from ffn.evaluation.collect import collect, gather, process_count

WIDTH = 128  # of embeddings (§2.1)


@register_task("contrastive")
class ContrastiveTask(ConvertedTask):
    """NT-Xent between views of a video at different frame counts (Chen et al. 2020, eq. 1).

    For two views of N videos, z are the 2N embeddings, and j is the other view of the video of i:

        l(i) = -log( exp(sim(z_i, z_j) / τ) / sum over k ≠ i of exp(sim(z_i, z_k) / τ) )

    with the cosine similarity sim. The loss is the mean over the 2N embeddings, and over all pairs
    of views if there are more than two. The N videos are those of a micro-batch on all processes.

    The embeddings are ``W2 relu(BN(W1 h))``, h the classifier's input. The authors' code has the
    batch norm, their formula has not; its statistics are those of a view of the N videos (§2.2),
    and in validation those of all videos.
    This projection is not part of the saved network, whose classifier has the one class
    `ffn.data.splits.UNLABELLED` and is not trained.

    Args:
        model: a frame-flexible network of one with timm's methods, as all in the zoo.
        names: of the views in a batch.
        temperature: τ.
    """

    Options = ContrastiveOptions
    needs_labels = False
    compares_views = True
    measure = "matched"

    def __init__(self, model: nn.Module, names: tuple[int, ...], *, temperature: float) -> None:
        super().__init__(model)
        self.names, self.temperature = tuple(sorted(names)), temperature
        width = model.head_hidden_size
        norm = nn.BatchNorm1d(width, track_running_stats=False)
        hidden = nn.Linear(width, width, bias=False), norm, nn.ReLU(inplace=True)
        self.projection = nn.Sequential(*hidden, nn.Linear(width, WIDTH))
        model.get_classifier().requires_grad_(False)

    @classmethod
    def from_options(cls, model: nn.Module, options: ContrastiveOptions) -> ContrastiveTask:
        """Build the task for the views of the options."""
        task = cls(model, tuple(cls.views(options)), temperature=options.temperature)
        task.uses_every_parameter = not options.draws
        return task

    def embed(self, features: Tensor) -> Tensor:
        """Normalized embeddings (N, D) of features, in float32 at least."""
        z = self.projection(features)
        return F.normalize(z.to(torch.promote_types(z.dtype, torch.float32)), dim=-1)

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the part of each view, with the similarities to its positive and the negatives.

        Column 0 has the positive, so that the label 0 of a batch without labels is the target.
        """
        own = torch.stack([features(self.model, batch["clips"][n]) for n in self.names], 1)
        every, first = gather_rows(own)
        every = torch.stack([self.embed(view) for view in every.unbind(1)], 1)  # (N, V, D)
        own = every[first : first + len(own)]  # (B, V, D)
        number = range(len(self.names))
        # The mean over the processes of their sums is the mean over all embeddings and pairs.
        share = process_count() / (len(every) * len(number) * (len(number) - 1))
        with torch.autocast(own.device.type, enabled=False):
            for view, name in enumerate(self.names):
                logits = [
                    similarities(own[:, view], every[:, other], every[:, view], first)
                    / self.temperature
                    for other in number
                    if other != view
                ]
                loss = sum((x.logsumexp(1) - x[:, 0]).sum() for x in logits)
                yield f"ntxent_{name}", share * loss, name, logits[-1]

    def evaluate(
        self, network: nn.Module, loader: DataLoader, *, precision: str, batch_size: int
    ) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
        """The share of videos whose embedding is the closest to their own one at another count.

        The other count is the largest trained one, for which it is the one before. Unreadable
        videos count as wrong.
        """
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)

        def run(clip: Tensor) -> Tensor:
            with torch.autocast(clip.device.type, half, enabled=half is not None):
                return features(network, clip)

        found = collect(network, loader, run, batch_size, keep_logits=True, progress=False)
        measures: dict[int, dict[str, float]] = {}
        device = next(self.projection.parameters()).device
        read = {frames: rows[found.ok].to(device) for frames, rows in (found.logits or {}).items()}
        if any(len(rows) > 1 for rows in read.values()):  # on rank 0
            with torch.no_grad():
                read = {frames: self.embed(rows.float()) for frames, rows in read.items()}
        for frames, rows in read.items():
            other = read[max(t for t in network.trained_frames if t != frames)]
            closest = torch.cat([(part @ other.T).argmax(1).cpu() for part in rows.split(1000)])
            right = (closest == torch.arange(len(closest))).sum()
            measures[frames] = {self.measure: 100 * float(right) / len(found.ok)}
        return gather(measures)[0], found.errors


def features(network: nn.Module, clip: Tensor) -> Tensor:
    """The input (B, C) of the classifier for clips."""
    return network.forward_head(network.forward_features(clip), pre_logits=True)


def similarities(rows: Tensor, others: Tensor, same: Tensor, first: int) -> Tensor:
    """Similarities of rows (B, D) with their positive in column 0, and with all negatives.

    Of another view (N, D) and of the same view (N, D), row ``first + i`` belongs to the video of
    row i. The result (B, 2 N + 1) is -inf in place of the two.
    """
    place = first + torch.arange(len(rows), device=rows.device)[:, None]
    to_others, to_same = rows @ others.T, rows @ same.T
    negatives = [x.scatter(1, place, -torch.inf) for x in (to_others, to_same)]
    return torch.cat([to_others.gather(1, place), *negatives], 1)
