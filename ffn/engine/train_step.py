"""One optimizer step: forward, backward, clip, finite check, undo, optimizer, EMA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn.data import Normalize, VideoError
from ffn.engine.distributed import World, any_of, average_gradients
from ffn.engine.optim import set_learning_rate
from ffn.engine.tasks import Task
from ffn.evaluation.collect import gather

MAX_BAD_STEPS = 10  # in a row; then the run ends


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step. All but ``outputs`` are equal on all processes.

    Attributes:
        outputs: per micro-batch the losses and logits of the task, and ``label`` and ``skipped`` of
            the batch; without losses and logits from the first one without a readable video on.
        grad_norm: norm of the gradients before clipping.
        updated: the optimizer has stepped.
        warning: message about a step whose loss or gradients are not finite, or without readable
            videos; None otherwise.
        stop: a process requested the end of the run.
    """

    outputs: list[dict[str, Any]]
    grad_norm: Tensor
    updated: bool
    warning: str | None
    stop: bool


class TrainStep:
    """Trains a task and its model, one optimizer step per call of :meth:`step`.

    A step is bad if its loss or gradients are not finite on any process, or if a process has no
    readable video in a micro-batch. A bad step changes nothing: weights, optimizer and the running
    statistics of norms stay. `MAX_BAD_STEPS` in a row end the run.

    Args:
        task: model and loss, on the device.
        optimizer: its groups carry an ``lr_scale``.
        world: the processes.
        normalize: applied to uint8 clips on the device.
        batch_mix: mixup, CutMix and label smoothing, as :class:`ffn.engine.mixup.BatchMix`.
        precision: "fp32", "bf16" or "fp16" (with a loss scale).
        sequential: run views one after another, each with its own backward; else in one pass.
        grad_accum_steps: micro-batches per step.
        clip_grad_norm: largest gradient norm; None does not clip.
        ema_decay: of a moving average of the model and its statistics; 0 has none. With w_t after
            step t: ``a_t = d_t a_(t-1) + (1 - d_t) w_t``, ``d_t = min(ema_decay, 1 - t^(-2/3))``.
        may_skip: micro-batches may be without videos; the processes then agree on each.
        advice: remedy for non-finite numbers, for messages.
        seed: of dropout; a step's random numbers depend on (seed, step, rank) alone.

    Attributes:
        model: the network in training.
        ema: its moving average (timm's ``ModelEmaV3``), or None.
        bad_steps: bad steps of the run.
        bad_steps_in_a_row: bad steps since the last good one.
    """

    def __init__(
        self,
        task: Task,
        optimizer: torch.optim.Optimizer,
        world: World,
        *,
        normalize: Normalize,
        batch_mix: Callable[..., dict[str, Any]],
        precision: str = "fp32",
        sequential: bool = False,
        grad_accum_steps: int = 1,
        clip_grad_norm: float | None = None,
        ema_decay: float = 0.0,
        may_skip: bool = False,
        advice: str = "",
        seed: int = 0,
    ) -> None:
        self.task, self.model, self.optimizer, self.world = task, task.model, optimizer, world
        self.normalize, self.batch_mix = normalize, batch_mix
        self.precision, self.sequential = precision, sequential
        self.grad_accum_steps, self.clip_grad_norm = grad_accum_steps, clip_grad_norm
        self.may_skip, self.advice, self.seed = may_skip, advice, seed
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "fp16")
        # Makes the scale, also for a first step without videos, which scales no loss.
        self.scaler.scale(torch.zeros((), device=world.device))
        self.ema = None
        if ema_decay:
            self.ema = ModelEmaV3(self.model, decay=ema_decay, use_warmup=True)
        self.bad_steps = self.bad_steps_in_a_row = 0
        # DDP, from the second step on: the first shows which parameters have gradients.
        self._parallel: nn.Module | None = None

    def step(
        self,
        batches: Iterable[dict[str, Any]],
        *,
        number: int,
        lr: float,
        stop: Callable[[], bool] = lambda: False,
    ) -> StepResult:
        """Train on one batch.

        Args:
            batches: micro-batches as the training loader returns them; ``grad_accum_steps`` are
                taken.
            number: optimizer steps done before this one, over all epochs.
            lr: learning rate.
            stop: whether this process requests the end of the run; called after the backward.

        Raises:
            FloatingPointError: too many bad steps in a row.
            VideoError: too many bad steps in a row, the last without a readable video.
            ValueError: there are fewer micro-batches.
        """
        set_learning_rate(self.optimizer, lr)
        seed_step(self.seed, number, self.world.rank)
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        outputs, has_videos = self._accumulate(batches, number)
        if self._parallel is None and has_videos:
            self._average()
        if has_videos:
            self.scaler.unscale_(self.optimizer)  # the norm is in the units of the loss
        largest = float("inf") if self.clip_grad_norm is None else self.clip_grad_norm
        grad_norm = nn.utils.clip_grad_norm_(self.task.parameters(), largest)

        losses = [output["loss"].detach() for output in outputs if "loss" in output]
        bad_here = ~torch.stack(losses).isfinite().all() if losses else False
        claims = [stop(), bad_here, ~grad_norm.isfinite()]
        stops, bad_loss, bad_norm = any_of(claims, self.world)
        # In fp16 a gradient that overflows only lowers the loss scale, while there is one.
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        updated = has_videos and not (bad_loss or bad_norm)
        if updated:
            self.scaler.step(self.optimizer)
            self.bad_steps_in_a_row = 0
            if self.ema is not None:
                self.ema.update(self.model, number + 1)
        else:  # undo what the forward passes wrote into running statistics
            for buffer, kept in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(kept)
        if has_videos:
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        warning = None
        if not has_videos:
            skipped = [reason for output in outputs for reason in output["skipped"]]
            reason = next(text for texts in gather(skipped) for text in texts)
            cause = f"a process has no readable video in step {number + 1} ({reason})"
            advice = "Check the videos with ffn check_data"
            warning = self._count_bad_step(cause, VideoError, advice)
        elif bad_loss or (bad_norm and not overflow):
            cause = f"the {'loss' if bad_loss else 'gradient'} is not finite at step {number + 1}"
            advice = f"{self.advice}. Checkpoints, if there are any, precede these steps"
            warning = self._count_bad_step(cause, FloatingPointError, advice)
        return StepResult(outputs, grad_norm, updated, warning, stops)

    @property
    def network(self) -> nn.Module:
        """The result of training, which is the moving average if there is one, else the model."""
        return self.model if self.ema is None else self.ema.module

    def autocast(self) -> torch.autocast:
        """Context of forward passes in the precision of training."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.world.device.type, dtype, self.precision != "fp32")

    def has_videos(self, batch: dict[str, Any]) -> bool:
        """Whether every process has videos in this micro-batch; all processes call it."""
        is_empty = not batch["clips"]
        return not (any_of([is_empty], self.world)[0] if self.may_skip else is_empty)

    def state_dict(self) -> dict[str, Any]:
        """State other than the network's: optimizer, loss scale, counts of bad steps."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "bad_steps": self.bad_steps,
            "bad_steps_in_a_row": self.bad_steps_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.bad_steps = state["bad_steps"]
        self.bad_steps_in_a_row = state["bad_steps_in_a_row"]

    def _accumulate(
        self, batches: Iterable[dict[str, Any]], number: int
    ) -> tuple[list[dict[str, Any]], bool]:
        """Outputs of the micro-batches of a step, and whether all of them have videos."""
        outputs, has_videos = [], True
        for micro, batch in zip(range(self.grad_accum_steps), batches, strict=False):
            has_videos = has_videos and self.has_videos(batch)
            kept = {"label": batch["label"], "skipped": batch["skipped"]}
            losses = self._backward(batch, number=number, micro=micro) if has_videos else {}
            outputs.append({**kept, **losses})
        if len(outputs) < self.grad_accum_steps:
            raise ValueError(
                f"step {number + 1} got {len(outputs)} micro-batches; grad_accum_steps is "
                f"{self.grad_accum_steps}"
            )
        return outputs, has_videos

    def _backward(self, batch: dict[str, Any], *, number: int, micro: int) -> dict[str, Any]:
        """Forward and backward of one micro-batch; DDP, which averages, runs only the last one."""
        batch = to_device(batch, self.world.device, self.normalize)
        batch = self.batch_mix(batch, step=number, micro=micro, rank=self.world.rank)

        def backward(loss: Tensor) -> None:
            with torch.autocast(self.world.device.type, enabled=False):
                self.scaler.scale(loss * (1 / self.grad_accum_steps)).backward()

        is_last = micro == self.grad_accum_steps - 1
        with self.autocast():
            if self.sequential:
                outputs = self.task(batch, backward)
            else:
                outputs = (self._parallel if is_last and self._parallel else self.task)(batch)
        if not self.sequential:
            backward(outputs["loss"])
        return {**outputs, "label": batch["label"]}

    def _count_bad_step(self, cause: str, error: type[Exception], advice: str) -> str:
        """Count a bad step; return its message, or raise the error if there are too many."""
        self.bad_steps += 1
        self.bad_steps_in_a_row += 1
        if self.bad_steps_in_a_row >= MAX_BAD_STEPS:
            raise error(f"{cause}, the last of {MAX_BAD_STEPS} such steps in a row. {advice}")
        return (
            f"{cause}: step skipped ({self.bad_steps_in_a_row} in a row, {self.bad_steps} in all)"
        )

    def _average(self) -> None:
        """Average gradients without DDP; make it if one backward pass makes a step."""
        if self.world.size > 1 and not self.sequential:
            trained = [p for p in self.task.parameters() if p.requires_grad]
            unused = [not self.task.uses_every_parameter, any(p.grad is None for p in trained)]
            self._parallel = self._wrap(find_unused=any(any_of(unused, self.world)))
        average_gradients(self.task.parameters(), self.world)

    def _wrap(self, *, find_unused: bool) -> DistributedDataParallel:
        devices = [self.world.device] if self.world.device.type == "cuda" else None
        with warnings.catch_warnings():  # new versions of torch rename the option, old ones lack it
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            return DistributedDataParallel(
                self.task,
                device_ids=devices,
                broadcast_buffers=False,
                find_unused_parameters=find_unused,
                gradient_as_bucket_view=True,  # no second copy between micro-batches
            )


def to_device(batch: dict[str, Any], device: torch.device, normalize: Normalize) -> dict[str, Any]:
    """Clips and labels of a batch on a device; uint8 clips are normalized there."""
    clips = {t: normalize(clip.to(device, non_blocking=True)) for t, clip in batch["clips"].items()}
    return {"clips": clips, "label": batch["label"].to(device, non_blocking=True)}


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the random numbers of a step, such as dropout, from (seed, step, rank) alone.

    A resumed run therefore draws the same numbers as an uninterrupted one.
    """
    entropy = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
