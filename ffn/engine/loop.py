"""The training loop: learning rate, forward, backward, clip, step, log."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn import zoo
from ffn.core import NORMS
from ffn.data import Normalise
from ffn.engine import build
from ffn.engine.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from ffn.engine.config import ConfigError, config_from_dict, config_to_dict
from ffn.engine.distributed import (
    World,
    average_buffers,
    average_gradients,
    barrier,
    gather,
)
from ffn.engine.log import RunLog
from ffn.engine.memory import memory_mib
from ffn.engine.meter import Meter
from ffn.engine.optim import set_learning_rate
from ffn.engine.options import Config, Precision, Views
from ffn.engine.resume import (
    buffers,
    check_same_run,
    load_buffers,
    random_state,
    set_random_state,
)
from ffn.engine.tasks import backward_each_view
from ffn.evaluation import evaluate


class Trainer:
    """A run: everything it needs, and where it stands.

    Args:
        config: a checked config.
        world: the processes.

    Raises:
        ConfigError: the run's folder holds a run with other options.
    """

    def __init__(self, config: Config, world: World) -> None:
        self.config, self.world = config, world
        self.folder = Path(config.log.output)
        self.videos = build.read_videos(config.data)
        self.train_loader = build.build_train_loader(config, self.videos, world)
        self.val_loader = build.build_test_loader(
            config,
            self.videos,
            world,
            frames=sorted({*config.task.frames, *config.data.test_frames}),
            preprocessing=build.build_preprocessing(config.data),
        )
        self.normalise = Normalise(self.train_loader.dataset.preprocessing)
        self.mix = build.build_mix(config, len(self.videos.classes))
        torch.manual_seed(config.train.seed)  # the same start on every process
        self.model = build.build_model(config, len(self.videos.classes)).to(world.device)
        build.check_precision(config, self.model, world.device)
        self.started_from = None
        if config.model.weights is not None:
            self.started_from = zoo.load_start_weights(self.model, config.model.weights)
        if config.train.sync_norms:
            self.model = _synchronise_norms(self.model, world)
        self.task = build.build_task(config, self.model)
        if config.train.freeze_norms:
            for norm in _norms(self.model):
                norm.requires_grad_(False)
        self.optimiser = build.build_optimiser(config, self.model)
        fp16 = config.train.precision is Precision.fp16
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=fp16)
        self.wrapped = self._wrap()
        self.steps_per_epoch = len(self.train_loader) // config.train.accumulate
        if self.steps_per_epoch < 1:
            raise ConfigError(
                f"{len(self.videos.train)} videos make no step of {config.train.batch_size}; "
                "lower train.batch_size"
            )
        self.epoch = self.step = 0  # whole epochs done; steps done, over all epochs
        self.best = -1.0
        self.metrics: dict[int, dict[str, float]] = {}
        torch.manual_seed(config.train.seed + 1 + world.rank)  # dropout differs between processes

    def _wrap(self) -> nn.Module:
        """The task, with gradients averaged during backward where one backward is the step."""
        if self.world.size == 1 or self.config.train.views is Views.sequential:
            return self.task
        devices = [self.world.device] if self.world.device.type == "cuda" else None
        with warnings.catch_warnings():  # new versions of torch rename the option, old ones lack it
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            return DistributedDataParallel(self.task, device_ids=devices, broadcast_buffers=False)

    def run(self) -> Path:
        """Train to the end, or on from the last checkpoint; returns the best checkpoint's path."""
        self._resume()
        done = self.epoch >= self.config.train.epochs
        total = self.config.train.epochs * self.steps_per_epoch
        with RunLog(
            self.folder,
            self.world,
            first_step=self.step,
            total_steps=total,
            wandb_mode="disabled" if done else self.config.log.wandb.value,
            project=self.config.log.project,
            config=config_to_dict(self.config),
        ) as log:
            self._say_start(log, done)
            while self.epoch < self.config.train.epochs:
                self._train_epoch(log)
                self.epoch += 1
                if self._validates():
                    self._validate(log)
                self._save("last.pt")
        return self.folder / "best.pt"

    def _train_epoch(self, log: RunLog) -> None:
        """One pass over the videos, or what is left of it."""
        train = self.config.train
        first = self.step - self.epoch * self.steps_per_epoch
        self.train_loader.sampler.set_epoch(self.epoch, skip_batches=first * train.accumulate)
        self.task.train()
        if train.freeze_norms:
            for norm in _norms(self.model):
                norm.eval()
        meter = Meter(self.world)
        batches = meter.timed(iter(self.train_loader))

        for _ in range(first, self.steps_per_epoch):
            lr = build.learning_rate_at(self.config, self.step / self.steps_per_epoch)
            set_learning_rate(self.optimiser, lr)
            for micro in range(train.accumulate):
                outputs = self._backward(next(batches), micro)
                meter.add(outputs)
            norm = self._clip()
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.optimiser.zero_grad(set_to_none=True)
            self.step += 1
            log.step(self.step, meter.rate())
            if self.step % self.config.log.interval == 0:
                self._log_interval(log, meter, lr, norm)
            if train.save_steps and self.step % train.save_steps == 0:
                self._save("last.pt")
        self._log_skipped(log, meter.skipped)

    def _backward(self, batch: dict[str, Any], micro: int) -> dict[str, Any]:
        """Forward and backward of one micro-batch; gradients are averaged after the last."""
        train, world = self.config.train, self.world
        last = micro == train.accumulate - 1
        skipped = batch["skipped"]
        batch = _to_device(batch, world.device, self.normalise)
        batch = self.mix(batch, step=self.step, micro=micro, rank=world.rank)
        dtype = torch.float16 if train.precision is Precision.fp16 else torch.bfloat16
        autocast = torch.autocast(world.device.type, dtype, train.precision is not Precision.fp32)
        scale = 1 / train.accumulate
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
        return {**outputs, "label": batch["label"], "skipped": skipped}

    def _clip(self) -> Tensor:
        """Clip the gradients' norm, in the units of the loss in every precision; return it."""
        self.scaler.unscale_(self.optimiser)
        largest = self.config.train.clip_norm
        return nn.utils.clip_grad_norm_(
            self.model.parameters(), float("inf") if largest is None else largest
        )

    def _validates(self) -> bool:
        train = self.config.train
        return self.epoch % train.validate_epochs == 0 or self.epoch == train.epochs

    def _validate(self, log: RunLog) -> None:
        """Accuracy at trained and unseen counts; keep the best network."""
        average_buffers(self.model, self.world)
        self.metrics = evaluate(
            self.model,
            self.val_loader,
            precision=self.config.train.precision.value,
            batch_size=build.clips_per_forward(self.config, self.world),
        )
        score = sum(self.metrics[t]["top1"] for t in self.config.task.frames)
        score /= len(self.config.task.frames)
        shown = "  ".join(f"{t}f {m['top1']:.1f}" for t, m in self.metrics.items())
        failed = next(iter(self.metrics.values()))["failed"]
        note = ""
        if failed:
            readable = len(self.videos.val) - failed
            mean = f"{score * len(self.videos.val) / readable:.2f}" if readable else "none"
            note = f"  ({failed} unreadable videos counted as wrong; mean of the others {mean})"
        log.say(f"epoch {self.epoch:>3} validation top-1 %: {shown}  mean {score:.2f}{note}")
        values = {f"top1/{t}": m["top1"] for t, m in self.metrics.items()}
        log.record("val", self.step, {"epoch": self.epoch, **values, "mean": score})
        if score > self.best:
            self.best = score
            self._save("best.pt", training=False)

    def _log_interval(self, log: RunLog, meter: Meter, lr: float, norm: Tensor) -> None:
        values = meter.means()
        if not all(torch.isfinite(torch.tensor(v)) for v in values.values()):
            raise FloatingPointError(
                f"the loss is not finite around step {self.step}: {values}; lower optim.lr, set "
                "train.clip_norm, or train in bf16 or fp32"
            )
        epoch = self.step / self.steps_per_epoch
        rate, waited = meter.speed()
        shown = "  ".join(f"{key} {value:.3f}" for key, value in values.items())
        log.say(
            f"epoch {epoch:6.2f}  step {self.step}  lr {lr:.2e}  {shown}  "
            f"grad {float(norm):.2f}  {rate:.0f} videos/s  data {waited:.0%}"
        )
        extra = {"lr": lr, "grad_norm": float(norm), "videos_per_s": rate, "data_wait": waited}
        extra["memory_mib"] = memory_mib(self.world.device)
        log.record("train", self.step, {"epoch": epoch, **values, **extra})
        meter.restart()

    def _log_skipped(self, log: RunLog, own: list[str]) -> None:
        skipped = [text for texts in gather(own, self.world) for text in texts]
        if skipped:
            shown = "".join(f"\n  {text}" for text in sorted(set(skipped))[:10])
            log.say(f"epoch {self.epoch + 1}: {len(skipped)} unreadable videos skipped{shown}")
        log.record("train", self.step, {"skipped": len(skipped)})

    def _say_start(self, log: RunLog, done: bool) -> None:
        config, train = self.config, self.config.train
        report = getattr(self.model, "report", None)
        if self.step:
            state = "finished already" if done else "continued"
            log.say(f"{self.folder}: {state}, {self.epoch} of {train.epochs} epochs done")
        else:
            log.say(
                f"{config.model.name}, {config.task.name.value}: {len(self.videos.train)} training "
                f"and {len(self.videos.val)} validation videos, {len(self.videos.classes)} classes"
            )
            if report is not None:
                log.say(str(report))
            if self.started_from is not None:
                log.say(f"start from {config.model.weights}: {self.started_from}")
            videos = f"{train.batch_size // train.repeats} videos"
            videos += f" x {train.repeats} draws" if train.repeats > 1 else ""
            log.say(
                f"{train.epochs} epochs of {self.steps_per_epoch} steps; {videos} "
                f"per step = {self.world.size} process(es) x {train.accumulate} micro-batch(es) x "
                f"{self.train_loader.batch_size}; learning rate {config.optim.lr}, "
                f"{train.precision.value} on {self.world.device.type}"
            )

    def _save(self, name: str, *, training: bool = True) -> None:
        """Write a checkpoint; random states of all processes are in it."""
        content: dict[str, Any] = {
            "model": self.model.state_dict(),
            "meta": build.describe(self.config, self.videos, self.metrics),
        }
        if training:
            content["training"] = {
                "optimiser": self.optimiser.state_dict(),
                "scaler": self.scaler.state_dict(),
                "random": gather(random_state(self.world.device), self.world),
                "buffers": gather(buffers(self.model), self.world),
                "epoch": self.epoch,
                "step": self.step,
                "best": self.best,
            }
        if self.world.is_main:
            save_checkpoint(self.folder / name, content)
        barrier(self.world)

    def _resume(self) -> None:
        """Continue from ``last.pt`` if the folder has one; else make the folder."""
        path = self.folder / "last.pt"
        exists = gather(path.is_file(), self.world)[0]
        if not exists:
            if self.world.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)
                OmegaConf.save(config_to_dict(self.config), self.folder / "config.yaml")
            barrier(self.world)
            return
        content = load_checkpoint(path)
        training = content.get("training")
        if training is None:
            raise CheckpointError(f"{path} has no training state to continue from")
        before = config_from_dict(content["meta"]["config"])  # options newer than it: the default
        check_same_run(config_to_dict(before), config_to_dict(self.config), path)
        data, now = content["meta"]["data"], self.videos.fingerprint()
        if any(now.get(key) != value for key, value in data.items()):
            raise ConfigError(
                f"{path} was trained on other videos or labels than {self.config.data.root} lists "
                "now; restore the lists, or choose another log.output"
            )
        if len(training["random"]) != self.world.size:
            raise ConfigError(
                f"{path} was written by {len(training['random'])} processes, now "
                f"{self.world.size} run; continue with as many, or start anew with another "
                f"log.output and model.weights={path}"
            )
        self.model.load_state_dict(content["model"])
        load_buffers(self.model, training["buffers"][self.world.rank])
        self.optimiser.load_state_dict(training["optimiser"])
        self.scaler.load_state_dict(training["scaler"])
        set_random_state(training["random"][self.world.rank], self.world.device)
        self.epoch, self.step, self.best = (training[key] for key in ("epoch", "step", "best"))
        self.metrics = {int(t): m for t, m in content["meta"]["metrics"].items()}


def _synchronise_norms(model: nn.Module, world: World) -> nn.Module:
    """BatchNorm over the batches of all processes; torch has it on CUDA alone."""
    if world.device.type != "cuda":
        raise ConfigError("train.sync_norms=true needs CUDA devices; leave it out on a CPU")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if world.size > 1 else model


def _norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, NORMS)]


def _to_device(batch: dict[str, Any], device: torch.device, normalise: Normalise) -> dict[str, Any]:
    """A batch on its device; clips travel as uint8 and are normalised there."""
    clips = {t: normalise(clip.to(device, non_blocking=True)) for t, clip in batch["clips"].items()}
    return {"clips": clips, "label": batch["label"].to(device, non_blocking=True)}
