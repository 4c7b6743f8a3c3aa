"""One optimiser step: forward, backward, clip, finite check, undo, optimiser, EMA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn.data import Normalise
from ffn.engine.distributed import World, any_of, average_gradients, broadcast_parameters
from ffn.engine.logs.run_log import BadBatches
from ffn.engine.optim import moving_average, set_learning_rate
from ffn.engine.tasks import Task


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step. All but ``outputs`` are equal on all processes.

    Attributes:
        outputs: per micro-batch the losses and logits of the task, and ``label``, ``index`` and
            ``skipped`` of the batch.
        grad_norm: norm of the gradients before clipping.
        updated: the optimiser has stepped.
        warning: message about a step whose loss or gradients are not finite; None otherwise.
        stop: a process requested the end of the run.
    """

    outputs: list[dict[str, Any]]
    grad_norm: Tensor
    updated: bool
    warning: str | None
    stop: bool


class TrainStep:
    """Trains a task's model, one optimiser step per call of :meth:`step`.

    A step whose loss or gradients are not finite on any process changes nothing: weights,
    optimiser and the running statistics of norms stay. Several in a row end the run.

    Args:
        task: model and loss, on the device.
        optimiser: its groups carry an ``lr_scale``.
        world: the processes.
        normalise: applied to uint8 clips on the device.
        batch_mix: mixup, CutMix and label smoothing, as :class:`ffn.engine.mixup.BatchMix`.
        precision: "fp32", "bf16" or "fp16" (with a loss scale).
        sequential: run views one after another, each with its own backward; else in one pass.
        grad_accum_steps: micro-batches per step.
        clip_grad_norm: largest gradient norm; None does not clip.
        ema_decay: of a moving average of the model; 0 has none.
        max_bad_steps: consecutive bad steps that raise.
        bad_batches: file that lists the videos of bad steps; None lists none.
        advice: remedy for non-finite numbers, for messages.
        seed: of dropout; a step's random numbers depend on (seed, step, rank) alone.

    Attributes:
        model: the network in training.
        ema: its moving average (timm's ``ModelEmaV3``), or None.
        bad_steps: bad steps of the run.
        consecutive_bad_steps: bad steps since the last good one.
    """

    def __init__(
        self,
        task: Task,
        optimiser: torch.optim.Optimizer,
        world: World,
        *,
        normalise: Normalise,
        batch_mix: Callable[..., dict[str, Any]],
        precision: str = "fp32",
        sequential: bool = False,
        grad_accum_steps: int = 1,
        clip_grad_norm: float | None = None,
        ema_decay: float = 0.0,
        max_bad_steps: int = 10,
        bad_batches: BadBatches | None = None,
        advice: str = "",
        seed: int = 0,
    ) -> None:
        self.task, self.model, self.optimiser, self.world = task, task.model, optimiser, world
        self.normalise, self.batch_mix = normalise, batch_mix
        self.precision, self.sequential = precision, sequential
        self.grad_accum_steps, self.clip_grad_norm = grad_accum_steps, clip_grad_norm
        self.max_bad_steps, self.bad_batches = max_bad_steps, bad_batches
        self.advice, self.seed = advice, seed
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "fp16")
        self.ema = moving_average(self.model, ema_decay) if ema_decay else None
        self.bad_steps = self.consecutive_bad_steps = 0
        self._forward = self._wrap()
        self._buffers = _BufferCopies(self.model)

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
            number: optimiser steps done before this one, over all epochs.
            lr: learning rate.
            stop: whether this process requests the end of the run; called after the backward.

        Raises:
            FloatingPointError: too many bad steps in a row.
            ValueError: there are fewer micro-batches.
        """
        set_learning_rate(self.optimiser, lr)
        seed_step(self.seed, number, self.world.rank)
        self._buffers.save()
        outputs = [
            self._backward(batch, number=number, micro=micro)
            for micro, batch in zip(range(self.grad_accum_steps), batches, strict=False)
        ]
        if len(outputs) < self.grad_accum_steps:
            raise ValueError(
                f"step {number + 1} got {len(outputs)} micro-batches; grad_accum_steps is "
                f"{self.grad_accum_steps}"
            )
        if self.sequential:
            average_gradients(self.model.parameters(), self.world)
        grad_norm = self._clip()

        losses = torch.stack([output["loss"].detach() for output in outputs])
        claims = [stop(), ~losses.isfinite().all(), ~grad_norm.isfinite()]
        stops, bad_loss, bad_norm = any_of(claims, self.world)
        # In fp16 a gradient that overflows only lowers the loss scale, while there is one.
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        updated = not (bad_loss or bad_norm)
        if updated:
            self._update(number)
        else:
            self._buffers.restore()
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        is_bad = bad_loss or (bad_norm and not overflow)
        warning = self._count_bad_step(number + 1, outputs, bad_loss) if is_bad else None
        return StepResult(outputs, grad_norm, updated, warning, stops)

    @property
    def network(self) -> nn.Module:
        """The result of training: the moving average if there is one, else the model."""
        return self.model if self.ema is None else self.ema.module

    def autocast(self) -> torch.autocast:
        """Context of forward passes in the precision of training."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.world.device.type, dtype, self.precision != "fp32")

    def state_dict(self) -> dict[str, Any]:
        """State other than the network's: optimiser, loss scale, counts of bad steps."""
        counts = {"total": self.bad_steps, "in_a_row": self.consecutive_bad_steps}
        return {
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        counts = state.get("guard", {"total": 0, "in_a_row": 0})  # not in files of format 1
        self.bad_steps, self.consecutive_bad_steps = counts["total"], counts["in_a_row"]

    def _backward(self, batch: dict[str, Any], *, number: int, micro: int) -> dict[str, Any]:
        """Forward and backward of one micro-batch; DDP averages gradients after the last."""
        kept = {key: batch[key] for key in ("skipped", "index")}
        batch = to_device(batch, self.world.device, self.normalise)
        batch = self.batch_mix(batch, step=number, micro=micro, rank=self.world.rank)
        scale = 1 / self.grad_accum_steps
        if self.sequential:
            outputs = backward_each_view(self.task, batch, scale, self.scaler, self.autocast())
        else:
            last = micro == self.grad_accum_steps - 1
            ddp = isinstance(self._forward, DistributedDataParallel)
            with self._forward.no_sync() if ddp and not last else nullcontext():
                with self.autocast():
                    outputs = self._forward(batch)
                self.scaler.scale(outputs["loss"] * scale).backward()
        return {**outputs, **kept, "label": batch["label"]}

    def _clip(self) -> Tensor:
        """Clip the gradient norm, in the units of the loss in every precision; return it."""
        self.scaler.unscale_(self.optimiser)
        largest = float("inf") if self.clip_grad_norm is None else self.clip_grad_norm
        return nn.utils.clip_grad_norm_(self.model.parameters(), largest)

    def _update(self, number: int) -> None:
        self.scaler.step(self.optimiser)
        if self.ema is not None:
            self.ema.update(self.model, number + 1)
        self.consecutive_bad_steps = 0

    def _count_bad_step(self, number: int, outputs: list[dict[str, Any]], bad_loss: bool) -> str:
        """Count a bad step and list its videos; all processes call it."""
        self.bad_steps += 1
        self.consecutive_bad_steps += 1
        text = f"the {'loss' if bad_loss else 'gradient'} is not finite at step {number}"
        listed = ""
        if self.bad_batches is not None:
            losses = [output["loss"].item() for output in outputs]
            indices = torch.cat([output["index"] for output in outputs]).tolist()
            self.bad_batches.append(number, losses, indices)
            listed = f"{self.bad_batches.path} lists the videos. "
        if self.consecutive_bad_steps >= self.max_bad_steps:
            raise FloatingPointError(
                f"{text}, the last of {self.consecutive_bad_steps} such steps in a row. {listed}"
                f"{self.advice}. The checkpoints precede these steps"
            )
        return (
            f"{text}: step skipped ({self.consecutive_bad_steps} in a row, {self.bad_steps} in all)"
        )

    def _wrap(self) -> nn.Module:
        """The task in DDP, where one backward pass makes the step; else the task itself.

        Both start all processes from the parameters of rank 0.
        """
        if self.sequential:
            broadcast_parameters(self.model, self.world)
        if self.world.size == 1 or self.sequential:
            return self.task
        devices = [self.world.device] if self.world.device.type == "cuda" else None
        with warnings.catch_warnings():  # new versions of torch rename the option, old ones lack it
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            return DistributedDataParallel(
                self.task,
                device_ids=devices,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,  # no second copy between micro-batches
            )


class _BufferCopies:
    """Copies of a model's buffers, to undo what a forward pass wrote into running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._find()

    def _find(self) -> None:
        owners = [module._buffers for module in self._model.modules()]
        self._places = [(o, n, b) for o in owners for n, b in o.items() if b is not None]
        kinds: dict[torch.dtype, list[Tensor]] = {}  # foreach operations take one dtype
        for *_, buffer in self._places:
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._pairs = [(live, [b.clone() for b in live]) for live in kinds.values()]

    def save(self) -> None:
        if any(owner[name] is not buffer for owner, name, buffer in self._places):
            self._find()  # a module has assigned a new tensor
        for live, kept in self._pairs:
            torch._foreach_copy_(kept, live)

    def restore(self) -> None:
        for owner, name, buffer in self._places:
            owner[name] = buffer
        for live, kept in self._pairs:
            torch._foreach_copy_(live, kept)


def backward_each_view(
    task: Task,
    batch: dict[str, Any],
    scale: float,
    scaler: torch.amp.GradScaler,
    autocast: torch.autocast,
) -> dict[str, Tensor]:
    """Run views one after another, each with its own backward pass.

    Gradients equal those of one backward through :meth:`Task.forward`; the activations of only one
    view exist at a time.

    Args:
        task: the task, not wrapped in DDP.
        batch: see :meth:`Task.forward`.
        scale: factor of every loss, one over the micro-batches of a step.
        scaler: the run's gradient scaler.
        autocast: context of the forward passes.

    Returns:
        The outputs of :meth:`Task.forward`, without graph.
    """
    outputs: dict[str, Tensor] = {}
    total: Tensor | float = 0.0
    views: Iterator[tuple[str, Tensor, int, Tensor]] = task.losses(batch)
    while True:
        with autocast:
            view = next(views, None)
        if view is None:
            return {"loss": total, **outputs}
        name, loss, frames, logits = view
        scaler.scale(loss * scale).backward()
        outputs[f"loss/{name}"] = loss.detach()
        outputs[f"logits/{frames}"] = logits.detach()
        total = total + loss.detach()


def to_device(batch: dict[str, Any], device: torch.device, normalise: Normalise) -> dict[str, Any]:
    """Clips and labels of a batch on a device; uint8 clips are normalised there."""
    clips = {t: normalise(clip.to(device, non_blocking=True)) for t, clip in batch["clips"].items()}
    return {"clips": clips, "label": batch["label"].to(device, non_blocking=True)}


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the random numbers of a step, such as dropout, from (seed, step, rank) alone.

    A resumed run therefore draws the same numbers as an uninterrupted one.
    """
    entropy = np.random.SeedSequence([seed, step, rank])
    torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
