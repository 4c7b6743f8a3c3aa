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


class Embedder(nn.Module):
    """A network without its classifier, and a projection of its features.

    Args:
        network: has ``forward_features`` and ``forward_head``, with timm's names and meanings.
        projection: maps the classifier's input (B, C) to embeddings (B, D).
    """

    def __init__(self, network: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.network, self.projection = network, projection

    def forward(self, clip: Tensor) -> Tensor:
        """Embeddings (B, D) of clips (B, C, T, H, W)."""
        features = self.network.forward_features(clip)
        return self.projection(self.network.forward_head(features, pre_logits=True))


@register_task("contrastive")
class ContrastiveTask(ConvertedTask):
    """NT-Xent between views of a video at different frame counts (Chen et al. 2020, eq. 1).

    For two views of N videos, z are the 2N embeddings, and j is the other view of the video of i:

        l(i) = -log( exp(sim(z_i, z_j) / τ) / sum over k ≠ i of exp(sim(z_i, z_k) / τ) )

    with the cosine similarity sim. The loss is the mean over the 2N embeddings, and over all pairs
    of views if there are more than two. The N videos are those of all processes.

    The embeddings are ``W2 relu(W1 h)``, h the classifier's input. This projection is not part of
    the saved network, whose classifier has the one class `ffn.data.splits.UNLABELLED` and is not
    trained.

    Note:
        With gradient accumulation, the N videos are those of a micro-batch.

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
        layers = nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, WIDTH)
        self.projection = nn.Sequential(*layers)
        model.get_classifier().requires_grad_(False)

    @classmethod
    def from_options(cls, model: nn.Module, options: ContrastiveOptions) -> ContrastiveTask:
        """Build the task for the views of the options."""
        task = cls(model, tuple(cls.views(options)), temperature=options.temperature)
        task.uses_every_parameter = not options.draws
        return task

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield the part of each view, with the similarities to its positive and the negatives.

        Column 0 has the positive, so that the label 0 of a batch without labels is the target.
        """
        embed = Embedder(self.model, self.projection)
        own = torch.stack([embed(batch["clips"][name]) for name in self.names])  # (V, B, D)
        with torch.autocast(own.device.type, enabled=False):
            own = F.normalize(own.to(torch.promote_types(own.dtype, torch.float32)), dim=-1)
            every, first = gather_rows(own.transpose(0, 1))
            every = every.transpose(0, 1)  # (V, N, D), those of this process from `first` on
            pairs = len(self.names) * (len(self.names) - 1)
            share = process_count() / (pairs * every.shape[1])  # the mean over the processes sums
            for view, name in enumerate(self.names):
                others = [n for n in range(len(self.names)) if n != view]
                logits = [
                    similarities(own[view], every[other], every[view], first) / self.temperature
                    for other in others
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
        embed = Embedder(network, self.projection)
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)

        def run(clip: Tensor) -> Tensor:
            with torch.autocast(clip.device.type, half, enabled=half is not None):
                return embed(clip)

        outputs = collect(embed, loader, run, batch_size, keep_logits=True, progress=False)
        found = None
        if outputs.logits is not None:  # on rank 0
            rows = {n: F.normalize(x[outputs.ok], dim=-1) for n, x in outputs.logits.items()}
            other = {n: rows[max(t for t in network.trained_frames if t != n)] for n in rows}
            right = {n: closest(rows[n], other[n]) == torch.arange(len(rows[n])) for n in rows}
            videos = len(outputs.ok)
            found = {n: {self.measure: 100 * float(x.sum()) / videos} for n, x in right.items()}
        return gather(found)[0], outputs.errors


def similarities(rows: Tensor, others: Tensor, same: Tensor, first: int) -> Tensor:
    """Cosine similarities of rows with their positive (column 0) and with their negatives.

    Args:
        rows: of a view (B, D), normalized.
        others: of another view (N, D); row ``first + i`` is the positive of row i.
        same: of the same view (N, D); row ``first + i`` is row i.

    Returns:
        (B, 2 N + 1), -inf in place of the positive among the others and of the row itself.
    """
    place = first + torch.arange(len(rows), device=rows.device)[:, None]
    to_others, to_same = rows @ others.T, rows @ same.T
    positive = to_others.gather(1, place)
    negatives = [x.scatter(1, place, -torch.inf) for x in (to_others, to_same)]
    return torch.cat([positive, *negatives], 1)


def closest(rows: Tensor, others: Tensor) -> Tensor:
    """For each row (N, D), the index of the most similar other row, in parts of 1,000 rows."""
    return torch.cat([(part @ others.T).argmax(1) for part in rows.split(1000)])
