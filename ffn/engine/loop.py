"""The training loop: learning rate, forward, backward, clip, step, log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn import zoo
from ffn.core import NORMS
from ffn.data import Normalise
from ffn.engine import announce, build
from ffn.engine.compile import eager
from ffn.engine.config import ConfigError, config_to_dict
from ffn.engine.distributed import (
    World,
    average_buffers,
    gather,
)
from ffn.engine.failures import explain_failures
from ffn.engine.log import RunLog
from ffn.engine.meter import Meter, memory_mib
from ffn.engine.optim import set_learning_rate
from ffn.engine.options import Config
from ffn.engine.precise_bn import update_precise_bn
from ffn.engine.randomness import make_deterministic, seed_step
from ffn.engine.resume import claimed, resume
from ffn.engine.run_folder import CheckpointFolder
from ffn.engine.saving import save, save_best
from ffn.engine.signals import StoppedError, StopRequest
from ffn.engine.step import Stepper, Verdict, to_device
from ffn.engine.sync_bn import convert_sync_bn
from ffn.engine.videos import read_videos
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
        self.checkpoints = CheckpointFolder(self.folder, keep=config.train.keep_checkpoints)
        self.stop = StopRequest(verbose=world.is_main)
        if config.train.deterministic:
            make_deterministic()
        self.videos = read_videos(config.data)
        self.train_loader = build.build_train_loader(config, self.videos, world)
        self.val_loader = build.build_test_loader(
            config,
            self.videos,
            world,
            frames=sorted({*config.task.frames, *config.data.test_frames}),
            preprocessing=build.build_preprocessing(config.data),
        )
        self.normalise = Normalise(self.train_loader.dataset.preprocessing)
        torch.manual_seed(config.train.seed)  # the same start on every process
        begins = gather(self.checkpoints.is_empty, world)[0]  # else the weights are there
        self.model = build.build_model(
            config, len(self.videos.classes), pretrained=begins and config.model.pretrained
        ).to(world.device)
        build.check_precision(config, self.model, world.device)
        self.started_from = None
        if begins and config.model.weights is not None:
            self.started_from = zoo.load_start_weights(self.model, config.model.weights)
        if config.train.sync_bn:
            self.model = convert_sync_bn(self.model, world)
        if config.train.freeze_bn:
            for norm in _norms(self.model):
                norm.requires_grad_(False)
        build.prepare_model(config, self.model)
        self.stepper = Stepper(
            config,
            self.model,
            normalise=self.normalise,
            mix=build.build_mix(config, len(self.videos.classes)),
            folder=self.folder,
            world=world,
        )
        self.steps_per_epoch = len(self.train_loader) // config.train.grad_accum_steps
        if self.steps_per_epoch < 1:
            raise ConfigError(
                f"{len(self.videos.train)} videos make no step of {config.train.batch_size}; "
                "lower train.batch_size"
            )
        if config.train.precise_bn > len(self.train_loader):
            raise ConfigError(
                f"train.precise_bn asks for {config.train.precise_bn} micro-batches, and an "
                f"epoch has {len(self.train_loader)}; give that or less"
            )
        self.meter = Meter(world)
        self.epoch = self.step = 0  # whole epochs done; steps done, over all epochs
        self.validates = False  # the last epoch's validation is still to come
        self.best = -1.0
        self.metrics: dict[int, dict[str, float]] = {}
        self.notes: list[str] = []  # what happened before the log was open
        self.saved: int | None = None  # step of the last checkpoint

    def run(self) -> Path:
        """Train to the end, or on from the last checkpoint; returns the best checkpoint's path.

        Raises:
            StoppedError: a signal ended it; what was done is saved.
            FloatingPointError: too many steps in a row were not finite.
            LoaderError: a worker of a data loader hangs or has died.
            LostProcessError: another process has ended.
            OutOfMemoryError: a batch does not fit.
        """
        with ExitStack() as stack:
            stack.enter_context(self.stop)
            loaders = (self.train_loader, self.val_loader)
            batch_size = self.train_loader.batch_size
            stack.enter_context(explain_failures(self.world, *loaders, batch_size=batch_size))
            stack.enter_context(claimed(self))
            resume(self)
            log = stack.enter_context(self._open_log())
            for line in announce.start(self):
                log.say(line)
            while not self.done:
                if not self.validates:
                    self._train_epoch(log)
                    self.epoch += 1
                    average_buffers(self.model, self.world)
                    if self.stepper.average is not None:
                        average_buffers(self.stepper.network, self.world)
                    self.validates = self._validates()
                    save(self)
                if self.validates:
                    with self.stop.interrupting(), log.busy("validating"):
                        self._measure_statistics(log)
                        self._validate(log)
                    self.validates = False
                    save(self)
        return self.folder / "best.pt"

    @property
    def done(self) -> bool:
        """Whether all epochs are behind the run, validation included."""
        return self.epoch >= self.config.train.epochs and not self.validates

    def _train_epoch(self, log: RunLog) -> None:
        """One pass over the videos, or what is left of it."""
        train, stepper = self.config.train, self.stepper
        first = self.step - self.epoch * self.steps_per_epoch
        self.train_loader.sampler.set_epoch(self.epoch, skip_batches=first * train.grad_accum_steps)
        stepper.task.train()
        if train.freeze_bn:
            for norm in _norms(self.model):
                norm.eval()
        self.meter.start_clock()
        batches = self.meter.timed(iter(self.train_loader))

        for _ in range(first, self.steps_per_epoch):
            lr = build.learning_rate_at(self.config, self.step / self.steps_per_epoch)
            set_learning_rate(stepper.optimiser, lr)
            seed_step(train.seed, self.step, self.world.rank)
            stepper.guard.remember()
            outputs = [
                stepper.backward(next(batches), step=self.step, micro=micro)
                for micro in range(train.grad_accum_steps)
            ]
            norm = stepper.clip()
            verdict = stepper.update(outputs, norm, step=self.step, stop=self.stop.requested)
            self.step += 1
            self.metrics = {}  # those were another network's
            self._count(outputs, verdict, log)
            log.step(self.step, self.meter.rate())
            if self.step % self.config.log.interval == 0:
                self._log_interval(log, lr, norm)
            if verdict.stop or (train.save_steps and self.step % train.save_steps == 0):
                save(self)
            if verdict.stop:
                raise StoppedError(announce.stopped(self))
        self._log_skipped(log)

    def _count(self, outputs: list[dict[str, Any]], verdict: Verdict, log: RunLog) -> None:
        """Add a step to the interval's numbers; of a bad one, keep the names of its videos."""
        for output in outputs:
            self.meter.read(output)
            if verdict.took:
                self.meter.add(output)
        if verdict.is_bad:
            self.meter.leave_out()
            indices = torch.cat([output["index"] for output in outputs]).tolist()
            videos = [self.videos.train[index].path for index in indices]
            losses = [output["loss"].item() for output in outputs]
            log.say(self.stepper.guard.reject(self.step, losses, videos, self.world))

    def _validates(self) -> bool:
        train = self.config.train
        return self.epoch % train.validate_epochs == 0 or self.epoch == train.epochs

    def _measure_statistics(self, log: RunLog) -> None:
        """Give the norms exact statistics, if that is asked for."""
        wanted = self.config.train.precise_bn
        if not wanted:
            return
        skipped: list[str] = []

        def batches() -> Iterator[dict[str, Any]]:
            self.train_loader.sampler.set_epoch(self.epoch)  # the next one's first videos
            for batch in itertools.islice(self.train_loader, wanted):
                skipped.extend(batch["skipped"])
                yield to_device(batch, self.world.device, self.normalise)

        with self.stepper.autocast(), eager():
            update_precise_bn(
                self.stepper.network, batches(), self.world, frames=self.config.task.frames
            )
        skipped = [text for texts in gather(skipped, self.world) for text in texts]
        if skipped:
            log.say(f"exact statistics: {len(skipped)} unreadable videos skipped")

    def _validate(self, log: RunLog) -> None:
        """Accuracy at trained and unseen counts; keep the best network."""
        with eager():
            self.metrics = evaluate(
                self.stepper.network,
                self.val_loader,
                precision=self.config.train.precision.value,
                batch_size=build.clips_per_forward(self.config, self.world),
            )
        score = sum(self.metrics[t]["top1"] for t in self.config.task.frames)
        score /= len(self.config.task.frames)
        log.say(announce.validation(self, score))
        values = {f"top1/{t}": m["top1"] for t, m in self.metrics.items()}
        log.record("val", self.step, {"epoch": self.epoch, **values, "mean": score})
        if score > self.best:
            self.best = score
            save_best(self)

    def _log_interval(self, log: RunLog, lr: float, norm: Tensor) -> None:
        values = self.meter.means()
        epoch = self.step / self.steps_per_epoch
        rate, waited = self.meter.speed()
        shown = "  ".join(
            f"{key} {value:.3f}" for key, value in values.items() if "/" in key or key == "loss"
        )
        log.say(
            f"epoch {epoch:6.2f}  step {self.step}  lr {lr:.2e}  {shown}  "
            f"grad {float(norm):.2f}  {rate:.0f} videos/s  data {waited:.0%}"
        )
        extra = {"lr": lr, "grad_norm": float(norm), "videos_per_s": rate, "data_wait": waited}
        extra["memory_mib"] = memory_mib(self.world.device)
        log.record("train", self.step, {"epoch": epoch, **values, **extra})
        self.meter.restart()

    def _log_skipped(self, log: RunLog) -> None:
        own, self.meter.skipped = self.meter.skipped, []
        skipped = [text for texts in gather(own, self.world) for text in texts]
        if skipped:
            shown = "".join(f"\n  {text}" for text in sorted(set(skipped))[:10])
            log.say(f"epoch {self.epoch + 1}: {len(skipped)} unreadable videos skipped{shown}")
        log.record("train", self.step, {"skipped": len(skipped)})

    def _open_log(self) -> RunLog:
        return RunLog(
            self.folder,
            self.world,
            first_step=self.step,
            total_steps=self.config.train.epochs * self.steps_per_epoch,
            wandb_mode="disabled" if self.done else self.config.log.wandb.value,
            project=self.config.log.project,
            config=config_to_dict(self.config),
            tensorboard=self.config.log.tensorboard and not self.done,
        )


def _norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, NORMS)]
