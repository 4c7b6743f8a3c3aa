"""Save the state of a run and restore it from the newest valid checkpoint.

Order, augmentation and dropout are functions of the seed and the position, so a checkpoint holds no
random state, and a run may resume on another number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn.engine.checkpoints import RunError, RunFolder, load_checkpoint, read_options
from ffn.engine.distributed import World, any_of, check_replicas, gather, on_main
from ffn.engine.freezing import frozen_buffers
from ffn.engine.logs.meter import Meter
from ffn.engine.run_videos import RunVideos
from ffn.engine.train_step import TrainStep


@dataclass
class RunState:
    """Position of a run.

    Attributes:
        epoch: complete epochs.
        step: optimizer steps, over all epochs.
        best: highest score of a validation, in percent.
        since_best: validations after the one with that score.
        metrics: per frame count the measures of the network in ``step``; empty before its
            validation.
        validation_pending: the validation after epoch number ``epoch`` has not finished.
    """

    epoch: int = 0
    step: int = 0
    best: float = -1.0
    since_best: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    validation_pending: bool = False


class Checkpointer:
    """Writes and reads the checkpoints of a run. All processes call it, the main one writes.

    Args:
        folder: of the run.
        train_step: its network, optimizer and counters are saved.
        meter: its interval is saved.
        world: the processes.
        metadata: describes the network and the run in every checkpoint: plain values, with
            ``config`` among them.
        videos: those of the run.
        changed_options: given the ``config`` of a checkpoint, the options that differ and must not.

    Attributes:
        notes: messages about damaged checkpoints and another number of processes.
    """

    def __init__(
        self,
        folder: RunFolder,
        train_step: TrainStep,
        meter: Meter,
        world: World,
        *,
        metadata: dict[str, Any],
        videos: RunVideos,
        changed_options: Callable[[dict[str, Any]], list[str]],
    ) -> None:
        self.folder, self.train_step, self.meter, self.world = folder, train_step, meter, world
        self.metadata = {**metadata, "data": videos.fingerprint}
        self._videos, self._changed_options = videos, changed_options
        self.notes: list[str] = []
        self._infinite = not_finite(train_step.model.state_dict())  # as a mask of an attention

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run's folder; the errors are those of :meth:`RunFolder.lock`."""
        with ExitStack() as stack:
            on_main(lambda: stack.enter_context(self.folder.lock()), self.world)
            yield

    def save(self, state: RunState) -> None:
        """Write a checkpoint to resume from.

        Raises:
            FloatingPointError: weights or statistics are not finite.
            OSError: the file cannot be written; the previous checkpoint stays.
            ReplicaError: the processes have different weights.
        """
        check_replicas(self.train_step.model, self.world)
        content = self._content(state)
        content["training"] = self._training_state() | {
            "meter": self.meter.state_dict(),
            "epoch": state.epoch,
            "step": state.step,
            "validates": state.validation_pending,
            "best": state.best,
            "since_best": state.since_best,
        }
        self._check_finite(content["training"].get("weights", {}), state.step)
        on_main(lambda: self.folder.save(content, state.step), self.world)

    def save_best(self, state: RunState) -> None:
        """Write the network as ``best.pt``. The errors are those of :meth:`save`."""
        content = self._content(state)
        on_main(lambda: self.folder.save_best(content), self.world)

    def finish(self, state: RunState) -> None:
        """Mark the run as complete."""
        metrics = {str(frames): values for frames, values in state.metrics.items()}
        summary = {"epochs": state.epoch, "best": state.best, "metrics": metrics}
        on_main(lambda: self.folder.finish(summary), self.world)

    def restore(self) -> RunState:
        """Load the newest valid checkpoint, or begin the run if the folder has none.

        Call it within :meth:`lock`.

        Raises:
            CheckpointError: there are checkpoints, and none is valid.
            RunError: the folder belongs to a run with other options or videos.
        """
        path, content, invalid = on_main(self._newest, self.world)
        self.notes = list(invalid)
        if path is None:
            on_main(self._check_new, self.world)
            state = RunState()
        else:
            state = self._restore(content or load_checkpoint(path), path)
        check_replicas(self.train_step.model, self.world)
        return state

    def write_config(self) -> None:
        """Write the options of the run, and its list of videos; the main process writes."""

        def write() -> None:
            self._videos.write()
            self.folder.write_config(self.metadata["config"])

        on_main(write, self.world)

    def _newest(self) -> tuple[Path | None, dict[str, Any] | None, list[str]]:
        """Path, content and messages; without the content where other processes read it too."""
        path, content, invalid = self.folder.newest() or (None, None, [])
        return path, content if self.world.size == 1 else None, invalid

    def _check_new(self) -> None:
        """Refuse a folder whose files a new run would overwrite."""
        folder, options = self.folder.path, read_options(self.folder.path)
        if (folder / "best.pt").exists():
            raise RunError(
                f"{folder} holds best.pt of a run and no checkpoint to resume from; a new run "
                "would overwrite it. Move it away, or choose another log.output"
            )
        if options is not None and self._videos.path.exists():  # a run stopped in its first epoch
            self._check_options(options, folder / "config.yaml")
        elif (folder / "config.yaml").exists():
            raise RunError(
                f"{folder / 'config.yaml'} is not of a run of ffn, and a new run would replace it. "
                "Choose another log.output, or rename the file"
            )

    def _restore(self, content: dict[str, Any], path: Path) -> RunState:
        """Load a checkpoint into the parts of the run."""
        training, meta = content["training"], content["meta"]
        self._check_options(meta["config"], path)
        self._videos.check(meta["data"], path)
        self._load_network(content["model"], training)
        self.train_step.load_state_dict(training)
        self.meter.load_state_dict(training["meter"])
        writers = len(training["buffers"])
        if writers != self.world.size:
            self.notes.append(
                f"{writers} process(es) wrote the checkpoint, now there are {self.world.size}: "
                "running statistics are averaged"
            )
        return RunState(
            epoch=training["epoch"],
            step=training["step"],
            best=training["best"],
            since_best=training["since_best"],
            metrics={int(frames): values for frames, values in meta["metrics"].items()},
            validation_pending=training["validates"],
        )

    def _check_options(self, before: dict[str, Any], path: Path) -> None:
        changed = self._changed_options(before)
        if changed:
            raise RunError(
                f"{path} belongs to a run with other options ({'; '.join(changed[:5])}). Choose "
                "another log.output, or use the options of that run"
            )

    def _content(self, state: RunState) -> dict[str, Any]:
        network = self.train_step.network.state_dict()
        self._check_finite(network, state.step)
        metrics = {str(frames): dict(values) for frames, values in state.metrics.items()}
        return {"model": network, "meta": {**self.metadata, "metrics": metrics}}

    def _training_state(self) -> dict[str, Any]:
        """State of the train step; running statistics differ between processes until averaged."""
        step = self.train_step
        state = step.state_dict() | {"buffers": gather_buffers(step.model, self.world)}
        if step.ema is not None:  # then the checkpoint's network is the average
            state["weights"] = step.model.state_dict()
            state["average_buffers"] = gather_buffers(step.ema.module, self.world)
        return state

    def _load_network(self, network: dict[str, Tensor], training: dict[str, Any]) -> None:
        step = self.train_step
        step.network.load_state_dict(network)
        if step.ema is not None:
            step.model.load_state_dict(training["weights"])
            load_buffers(step.ema.module, training["average_buffers"], self.world)
        load_buffers(step.model, training["buffers"], self.world)

    def _check_finite(self, state: dict[str, Tensor], step: int) -> None:
        wrong = [name for name in not_finite(state) if name not in self._infinite]
        if any_of([bool(wrong)], self.world)[0]:
            raise FloatingPointError(
                f"weights or statistics are not finite at step {step} ({', '.join(wrong[:3])}); "
                f"they are not saved, and earlier checkpoints stay. {self.train_step.advice}"
            )


def not_finite(state: dict[str, Any]) -> list[str]:
    """Names of the floating-point tensors in a state dict that hold NaN or an infinity."""
    floats = {k: v for k, v in state.items() if torch.is_tensor(v) and v.is_floating_point()}
    if not floats:
        return []
    # One number per tensor: a single synchronization with a GPU.
    sums = torch.stack([value.detach().double().abs().sum() for value in floats.values()])
    return [key for key, good in zip(floats, sums.isfinite().tolist(), strict=True) if not good]


def gather_buffers(module: nn.Module, world: World) -> list[list[Tensor]]:
    """Copies on the CPU of the buffers of every process, in order of rank."""
    return gather([buffer.detach().cpu().clone() for buffer in module.buffers()], world)


def load_buffers(module: nn.Module, saved: list[list[Tensor]], world: World) -> None:
    """Restore what :func:`gather_buffers` returned, in place.

    With another number of processes than before, each gets the mean over the saved ones, and the
    first one's integer buffers and statistics of frozen norms.
    """
    same, frozen = len(saved) == world.size, frozen_buffers(module)
    for position, buffer in enumerate(module.buffers()):
        if same:
            value = saved[world.rank][position]
        elif buffer.is_floating_point() and id(buffer) not in frozen:
            value = torch.stack([own[position] for own in saved]).mean(0)
        else:
            value = saved[0][position]
        buffer.copy_(value)
