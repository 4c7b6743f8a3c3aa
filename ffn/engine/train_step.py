"""One optimizer step: forward, backward, clip, finite check, undo, optimizer, EMA."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn.data import Normalize, VideoError
from ffn.engine.distributed import (
    World,
    any_of,
    average,
    average_gradients,
    broadcast_parameters,
    gather,
)
from ffn.engine.logs.run_log import BadBatches
from ffn.engine.optim import moving_average, set_learning_rate
from ffn.engine.sync_bn import SYNCHRONIZED
from ffn.engine.tasks import Task


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step. All but ``outputs`` are equal on all processes.

    Attributes:
        outputs: per micro-batch the losses and logits of the task, and ``label``, ``index`` and
            ``skipped`` of the batch; without losses and logits if it had no readable video.
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
    """Trains a task's model, one optimizer step per call of :meth:`step`.

    A step whose loss or gradients are not finite on any process changes nothing: weights,
    optimizer and the running statistics of norms stay. So does one without a readable video on any
    process. Several in a row end the run. A micro-batch without readable videos counts as nothing;
    with synchronized norms those of the other processes at this time count as nothing, too.

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
        ema_decay: of a moving average of the model; 0 has none.
        max_bad_steps: consecutive bad steps that raise.
        bad_batches: file that lists the videos of bad steps; None lists none.
        may_skip: micro-batches may be without videos; the processes then agree on each.
        advice: remedy for non-finite numbers, for messages.
        seed: of dropout; a step's random numbers depend on (seed, step, rank) alone.

    Attributes:
        model: the network in training.
        ema: its moving average (timm's ``ModelEmaV3``), or None.
        sync_bn: norms are synchronized between processes.
        bad_steps: bad steps of the run.
        consecutive_bad_steps: bad steps since the last good one.
        non_finite_steps: those of them with a loss or gradients that are not finite.
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
        max_bad_steps: int = 10,
        bad_batches: BadBatches | None = None,
        may_skip: bool = False,
        advice: str = "",
        seed: int = 0,
    ) -> None:
        self.task, self.model, self.optimizer, self.world = task, task.model, optimizer, world
        self.normalize, self.batch_mix = normalize, batch_mix
        self.precision, self.sequential = precision, sequential
        self.grad_accum_steps, self.clip_grad_norm = grad_accum_steps, clip_grad_norm
        self.max_bad_steps, self.bad_batches = max_bad_steps, bad_batches
        self.may_skip, self.advice, self.seed = may_skip, advice, seed
        self.sync_bn = any(isinstance(m, SYNCHRONIZED) for m in self.model.modules())
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == "fp16")
        # Makes the scale, also for a first step without videos, which scales no loss.
        self.scaler.scale(torch.zeros((), device=world.device))
        self.ema = moving_average(self.model, ema_decay) if ema_decay else None
        self.bad_steps = self.consecutive_bad_steps = self.non_finite_steps = 0
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
        self._buffers.save()
        outputs, complete = [], True
        for micro, batch in zip(range(self.grad_accum_steps), batches, strict=False):
            complete = self.is_complete(batch)  # at the end: that of the last micro-batch
            outputs.append(self._backward(batch, number=number, micro=micro, complete=complete))
        if len(outputs) < self.grad_accum_steps:
            raise ValueError(
                f"step {number + 1} got {len(outputs)} micro-batches; grad_accum_steps is "
                f"{self.grad_accum_steps}"
            )
        has_videos = self._average(outputs, by_ddp=complete and not self.sequential)
        grad_norm = self._clip(has_videos=has_videos)

        losses = [output["loss"].detach() for output in outputs if "loss" in output]
        bad_here = ~torch.stack(losses).isfinite().all() if losses else False
        claims = [stop(), bad_here, ~grad_norm.isfinite()]
        stops, bad_loss, bad_norm = any_of(claims, self.world)
        # In fp16 a gradient that overflows only lowers the loss scale, while there is one.
        overflow = self.scaler.is_enabled() and self.scaler.get_scale() > 1
        updated = has_videos and not (bad_loss or bad_norm)
        if updated:
            self._update(number)
        else:
            self._buffers.restore()
        if has_videos:
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        warning = None
        if not has_videos:
            warning = self._count_empty_step(number + 1, outputs)
        elif bad_loss or (bad_norm and not overflow):
            warning = self._count_bad_step(number + 1, outputs, bad_loss)
        return StepResult(outputs, grad_norm, updated, warning, stops)

    @property
    def network(self) -> nn.Module:
        """The result of training, which is the moving average if there is one, else the model."""
        return self.model if self.ema is None else self.ema.module

    def autocast(self) -> torch.autocast:
        """Context of forward passes in the precision of training."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.world.device.type, dtype, self.precision != "fp32")

    def is_complete(self, batch: dict[str, Any]) -> bool:
        """Whether every process has videos in this micro-batch; all processes call it."""
        if not self.may_skip or self.world.size == 1:
            return bool(batch["clips"])
        return not any_of([not batch["clips"]], self.world)[0]

    def usable(self, batch: dict[str, Any], *, complete: bool) -> bool:
        """Whether this process uses a micro-batch; ``complete``: as :meth:`is_complete` returned.

        Synchronized norms need videos on every process.
        """
        return bool(batch["clips"]) and (complete or not self.sync_bn)

    def state_dict(self) -> dict[str, Any]:
        """State other than the network's: optimizer, loss scale, counts of bad steps."""
        counts = {
            "total": self.bad_steps,
            "in_a_row": self.consecutive_bad_steps,
            "not_finite": self.non_finite_steps,
        }
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        counts = state.get("guard", {"total": 0, "in_a_row": 0})  # not in files of format 1
        self.bad_steps, self.consecutive_bad_steps = counts["total"], counts["in_a_row"]
        self.non_finite_steps = counts.get("not_finite", 0)  # not in files of version 0.2

    def _average(self, outputs: list[dict[str, Any]], *, by_ddp: bool) -> bool:
        """Average gradients over all micro-batches with videos; return whether there are any."""
        parameters = list(self.model.parameters())
        every = self.grad_accum_steps
        used = float(sum("loss" in output for output in outputs))
        if self.may_skip and self.world.size > 1:
            used = average(torch.tensor(used, device=self.world.device), self.world).item()
        if used < every and self.world.size > 1:  # a process without videos has no gradients
            learns = any_of([parameter.grad is not None for parameter in parameters], self.world)
            for parameter, one in zip(parameters, learns, strict=True):
                if one and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        if not by_ddp and (self.sequential or self.world.size > 1):
            average_gradients(parameters, self.world)
        if 0 < used < every:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], every / used)
        return used > 0

    def _backward(
        self, batch: dict[str, Any], *, number: int, micro: int, complete: bool
    ) -> dict[str, Any]:
        """Forward and backward of one micro-batch.

        DDP, which averages gradients, runs only the last one, and only if it is ``complete``: it
        needs all processes.
        """
        kept = {key: batch[key] for key in ("skipped", "index")}
        if not self.usable(batch, complete=complete):
            return {**kept, "label": batch["label"][:0]}
        batch = to_device(batch, self.world.device, self.normalize)
        batch = self.batch_mix(batch, step=number, micro=micro, rank=self.world.rank)
        scale = 1 / self.grad_accum_steps
        if self.sequential:
            outputs = backward_each_view(self.task, batch, scale, self.scaler, self.autocast())
        else:
            last = micro == self.grad_accum_steps - 1
            with self.autocast():
                outputs = (self._forward if last and complete else self.task)(batch)
            self.scaler.scale(outputs["loss"] * scale).backward()
        return {**outputs, **kept, "label": batch["label"]}

    def _clip(self, *, has_videos: bool) -> Tensor:
        """Clip the gradient norm, in the units of the loss in every precision; return it."""
        if has_videos:
            self.scaler.unscale_(self.optimizer)
        largest = float("inf") if self.clip_grad_norm is None else self.clip_grad_norm
        return nn.utils.clip_grad_norm_(self.model.parameters(), largest)

    def _update(self, number: int) -> None:
        if not self.task.uses_every_parameter:
            _start_momentum(self.optimizer)
        self.scaler.step(self.optimizer)
        if self.ema is not None:
            self.ema.update(self.model, number + 1)
        self.consecutive_bad_steps = self.non_finite_steps = 0

    def _count_bad_step(self, number: int, outputs: list[dict[str, Any]], bad_loss: bool) -> str:
        """Count a bad step and list its videos; all processes call it."""
        text = f"the {'loss' if bad_loss else 'gradient'} is not finite at step {number}"
        self.non_finite_steps += 1
        listed = ""
        if self.bad_batches is not None:
            losses = [output["loss"].item() for output in outputs if "loss" in output]
            indices = torch.cat([output["index"] for output in outputs]).tolist()
            self.bad_batches.append(number, losses, indices)
            listed = f"{self.bad_batches.path} lists the videos. "
        if self._count_one():
            raise FloatingPointError(
                f"{text}, the last of {self.consecutive_bad_steps} such steps in a row. {listed}"
                f"{self.advice}. Checkpoints, if there are any, precede these steps"
            )
        return self._skipped(text)

    def _count_empty_step(self, number: int, outputs: list[dict[str, Any]]) -> str:
        """Count a step without usable videos as a bad one; all processes call it."""
        own = [reason for output in outputs for reason in output["skipped"]]
        reasons = [reason for texts in gather(own, self.world) for reason in texts]
        text = f"no video of step {number} is readable ({reasons[0]})"
        unused = [len(output["index"]) > 0 for output in outputs]
        if any_of([any(unused)], self.world)[0]:
            text = (
                f"a process has no readable video in step {number} ({reasons[0]}), and "
                "train.sync_bn needs videos of all processes"
            )
        if self._count_one():
            raise VideoError(
                f"{text}, the last of {self.consecutive_bad_steps} bad steps in a row. Check the "
                f"videos with ffn check_data"
            )
        return self._skipped(text)

    def _count_one(self) -> bool:
        """Count one bad step; whether it is the last one that is allowed."""
        self.bad_steps += 1
        self.consecutive_bad_steps += 1
        return self.consecutive_bad_steps >= self.max_bad_steps

    def _skipped(self, text: str) -> str:
        counts = f"{self.consecutive_bad_steps} in a row, {self.bad_steps} in all"
        return f"{text}: step skipped ({counts})"

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
                find_unused_parameters=not self.task.uses_every_parameter,
                gradient_as_bucket_view=True,  # no second copy between micro-batches
            )


def _start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give parameters that get their first gradient a momentum of 0, if others have momentum.

    torch's fused SGD (2.15) needs the momentum of all of them or of none.
    """
    for group in optimizer.param_groups:
        used = [p for p in group["params"] if p.grad is not None] if group.get("momentum") else []
        for parameter in used:
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


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
