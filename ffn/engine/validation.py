"""Validation of a run: exact BatchNorm statistics, then accuracy per frame count."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.utils.data import DataLoader

from ffn.core import FrameFlexible
from ffn.engine.compile import eager
from ffn.engine.distributed import World, gather
from ffn.engine.precise_bn import update_precise_bn
from ffn.engine.train_step import TrainStep, seed_step, to_device
from ffn.evaluation import measure


class Validator:
    """Tests the network of a train step on the validation videos. All processes call it.

    Args:
        train_step: its network is tested, in its precision.
        loader: validation batches.
        world: the processes.
        trained_frames: counts whose mean accuracy is the score.
        measure: name of this accuracy: top1, or map with several labels per video.
        batch_size: clips per forward pass.
        precise_bn: micro-batches of training data for exact BatchNorm statistics; 0 keeps the
            running ones.
        train_loader: these batches.
    """

    def __init__(
        self,
        train_step: TrainStep,
        loader: DataLoader,
        world: World,
        *,
        trained_frames: Sequence[int],
        measure: str = "top1",
        batch_size: int,
        precise_bn: int = 0,
        train_loader: DataLoader | None = None,
    ) -> None:
        self.train_step, self.loader, self.world = train_step, loader, world
        self.trained_frames, self.batch_size = tuple(trained_frames), batch_size
        self.measure = measure
        self.precise_bn, self.train_loader = precise_bn, train_loader

    def evaluate(self) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
        """Measures of the network at every tested frame count, by count; unreadable videos.

        Raises:
            FloatingPointError: logits are not finite.
            VideoError: no video can be read.
        """
        step = self.train_step
        try:
            with eager():
                return measure(step.network, self.loader, step.precision, self.batch_size)
        except FloatingPointError as error:
            raise FloatingPointError(f"{error}. {step.advice}") from error

    def score(self, metrics: dict[int, dict[str, float]]) -> float:
        """Mean accuracy over the trained counts, in percent; of all videos."""
        return sum(metrics[t][self.measure] for t in self.trained_frames) / len(self.trained_frames)

    def update_statistics(self, epoch: int) -> list[str]:
        """Give BatchNorms exact statistics of the first training videos of an epoch.

        The network runs on the clips that its task trains on, without mixup.

        Returns:
            A message about networks or sub-networks that keep their running statistics, because
            there was no clip for them.
        """
        if not self.precise_bn:
            return []
        step, used = self.train_step, set()

        def clips() -> Iterator[Tensor]:
            self.train_loader.sampler.set_epoch(epoch)
            for batch in itertools.islice(self.train_loader, self.precise_bn):
                if step.has_videos(batch):
                    batch = to_device(batch, self.world.device, step.normalize)
                    for clip in step.task.clips(batch).values():
                        yield clip
                        used.add(getattr(step.network, "active", 0))  # by now, it has run the clip

        seed_step(step.seed, epoch, self.world.rank)  # for clips that a task changes at random
        with step.autocast(), eager():
            norms = update_precise_bn(step.network, clips(), self.world)
        drawn = {count for counts in gather(used, self.world) for count in counts}
        if norms and not drawn:
            return ["train.precise_bn found no readable video; running statistics are kept"]
        if not norms or not isinstance(step.network, FrameFlexible):
            return []
        left = [str(count) for count in step.network.trained_frames if count not in drawn]
        message = (
            f"no clip was drawn for the sub-networks of {', '.join(left)} frames, which keep "
            "running statistics; raise train.precise_bn"
        )
        return [message] if left else []
