"""One optimiser step: forward, backward, clip, and the update, if all numbers are finite."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn.data import Normalise
from ffn.engine import build
from ffn.engine.distributed import World, any_of, average_gradients
from ffn.engine.ema import moving_average
from ffn.engine.guards import StepGuard
from ffn.engine.mixup import BatchMix
from ffn.engine.options import Config, Precision, Views
from ffn.engine.resume import gather_buffers, load_buffers
from ffn.engine.tasks import backward_each_view


class Verdict(NamedTuple):
    """What became of a step, the same on all processes.

    Attributes:
        stop: a process was asked to end the run.
        took: the optimiser has stepped.
        is_bad: a number was not finite, and not for fp16's loss scale alone.
    """

    stop: bool
    took: bool
    is_bad: bool


class Stepper:
    """Trains a network step by step, with all that a step needs and changes.

    Args:
        config: a checked config.
        model: the network, on its device.
        normalise: what clips go through on the device.
        mix: what mixes the videos of a batch.
        folder: of the run.
        world: the processes.

    Attributes:
        average: moving average of the network over the steps; None if there is none.
        guard: counts the bad steps.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        *,
        normalise: Normalise,
        mix: BatchMix,
        folder: Path,
        world: World,
    ) -> None:
        self.config, self.model, self.world = config, model, world
        self.normalise, self.mix = normalise, mix
        self.task = build.build_task(config, model)
        self.optimiser = build.build_optimiser(config, model)
        fp16 = config.train.precision is Precision.fp16
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=fp16)
        self.wrapped = self._wrap()
        decay = config.train.ema_decay
        self.average = moving_average(model, decay) if decay else None
        self.guard = StepGuard(
            model, folder, limit=config.train.max_bad_steps, advice=advice(config)
        )

    def backward(self, batch: dict[str, Any], *, step: int, micro: int) -> dict[str, Any]:
        """Forward and backward of one micro-batch; gradients are averaged after the last.

        Args:
            batch: as the training loader gives it.
            step: optimiser steps done, over all epochs.
            micro: which micro-batch of the step.

        Returns:
            What the task returns, and ``label``, ``index`` and ``skipped`` of the batch.
        """
        train, world = self.config.train, self.world
        last = micro == train.grad_accum_steps - 1
        told = {key: batch[key] for key in ("skipped", "index")}
        batch = to_device(batch, world.device, self.normalise)
        batch = self.mix(batch, step=step, micro=micro, rank=world.rank)
        autocast = self.autocast()
        scale = 1 / train.grad_accum_steps
        if train.views is Views.sequential:
            outputs = backward_each_view(self.task, batch, scale, self.scaler, autocast)
            if last:
                average_gradients(self.model.parameters(), world)
        else:
            ddp = isinstance(self.wrapped, DistributedDataParallel)
            with self.wrapped.no_sync() if ddp and not last else nullcontext():
                with autocast:
                    outputs = self.wrapped(batch)
                self.scaler.scale(outputs["loss"] * scale).backward()
        return {**outputs, **told, "label": batch["label"]}

    def clip(self) -> Tensor:
        """Clip the gradients' norm, in the units of the loss in every precision; return it."""
        self.scaler.unscale_(self.optimiser)
        largest = self.config.train.clip_grad_norm
        return nn.utils.clip_grad_norm_(
            self.model.parameters(), float("inf") if largest is None else largest
        )

    def update(
        self, outputs: list[dict[str, Any]], norm: Tensor, *, step: int, stop: bool
    ) -> Verdict:
        """Step the optimiser, unless a number is not finite on any process.

        A step that is not taken leaves weights, optimiser and statistics as they were.

        Args:
            outputs: of the micro-batches.
            norm: of the gradients, before clipping.
            step: optimiser steps done before this one.
            stop: whether this process was asked to end the run.
        """
        losses = torch.stack([output["loss"].detach() for output in outputs])
        claims = [stop, ~losses.isfinite().all(), ~norm.isfinite()]
        stop, bad_loss, bad_norm = any_of(claims, self.world)
        took = not (bad_loss or bad_norm)
        # In fp16 a gradient that runs over only lowers the scale, while there is one.
        scaled = self.scaler.is_enabled()
        is_bad = bad_loss or (bad_norm and not (scaled and self.scaler.get_scale() > 1))
        if took:
            self.scaler.step(self.optimiser)
            if self.average is not None:
                self.average.update(self.model, step + 1)
            self.guard.accept()
        else:
            self.guard.undo()
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        return Verdict(stop, took, is_bad)

    @property
    def network(self) -> nn.Module:
        """What training is to give: the model, or its moving average."""
        return self.model if self.average is None else self.average.module

    def state(self) -> dict[str, Any]:
        """What to keep beside the network to continue; all processes call it."""
        state = {
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "guard": self.guard.state_dict(),
            "buffers": gather_buffers(self.model, self.world),
        }
        if self.average is not None:  # then that is the network
            state["weights"] = self.model.state_dict()
            state["average_buffers"] = gather_buffers(self.average.module, self.world)
        return state

    def load_state(self, network: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Put back the network and what :meth:`state` returned."""
        self.network.load_state_dict(network)
        if self.average is not None:
            self.model.load_state_dict(state["weights"])
            load_buffers(self.average.module, state["average_buffers"], self.world)
        load_buffers(self.model, state["buffers"], self.world)
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if "guard" in state:  # not in files of format 1
            self.guard.load_state_dict(state["guard"])

    def autocast(self) -> torch.autocast:
        """The precision of forward passes."""
        precision = self.config.train.precision
        dtype = torch.float16 if precision is Precision.fp16 else torch.bfloat16
        return torch.autocast(self.world.device.type, dtype, precision is not Precision.fp32)

    def _wrap(self) -> nn.Module:
        """The task, with gradients averaged during backward where one backward is the step."""
        if self.world.size == 1 or self.config.train.views is Views.sequential:
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


def advice(config: Config) -> str:
    """What to try when numbers are not finite."""
    tries = ["lower optim.lr"]
    if config.train.clip_grad_norm is None:
        tries.append("set train.clip_grad_norm")
    if config.train.precision is Precision.fp16:
        tries.append("train in bf16 or fp32")
    return f"Try this: {', '.join(tries)}"


def to_device(batch: dict[str, Any], device: torch.device, normalise: Normalise) -> dict[str, Any]:
    """A batch on its device; clips travel as uint8 and are normalised there."""
    clips = {t: normalise(clip.to(device, non_blocking=True)) for t, clip in batch["clips"].items()}
    return {"clips": clips, "label": batch["label"].to(device, non_blocking=True)}
