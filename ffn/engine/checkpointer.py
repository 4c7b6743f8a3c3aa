"""Save the state of a run and restore it from the newest valid checkpoint.

Order, augmentation and dropout are functions of the seed and the position, so a checkpoint holds no
random state, and a run may resume on another number of processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from ffn.data import Splits, label_text
from ffn.engine.checkpoints import (
    RunError,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    save_step,
)
from ffn.engine.distributed import World, any_of, check_replicas, on_main
from ffn.engine.freezing import frozen_buffers
from ffn.engine.meter import Meter
from ffn.engine.train_step import TrainStep
from ffn.evaluation.collect import gather
from ffn.files import write_text

VIDEOS = "videos.csv"


@dataclass
class RunState:
    """Position of a run.

    Attributes:
        epoch: complete epochs.
        step: optimizer steps, over all epochs.
        best: highest score of a validation, in percent; of an error, the negative of the lowest.
        since_best: validations after the one with that score.
        validates: the validation after epoch number ``epoch`` has not finished.
        log_lines: lines of the log that were written before the checkpoint.
        metrics: per frame count the measures of the network in ``step``; empty before its
            validation.
    """

    epoch: int = 0
    step: int = 0
    best: float = -math.inf
    since_best: int = 0
    validates: bool = False
    log_lines: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)


class Checkpointer:
    """Writes and reads the checkpoints of a run. All processes call it, the main one writes.

    Args:
        folder: of the run.
        train_step: its network, optimizer and counters are saved.
        meter: its interval is saved.
        world: the processes.
        keep: number of newest checkpoints to keep.
        metadata: describes the network and the run in every checkpoint: plain values, with
            ``config`` among them.
        videos: text that lists those of the run, see :func:`list_videos`.
        changed_options: given the ``config`` of a checkpoint, the options that differ and must not.

    Attributes:
        notes: messages about damaged checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        train_step: TrainStep,
        meter: Meter,
        world: World,
        *,
        keep: int,
        metadata: dict[str, Any],
        videos: str,
        changed_options: Callable[[dict[str, Any]], list[str]],
    ) -> None:
        self.folder, self.train_step, self.meter, self.world = folder, train_step, meter, world
        self.keep, self.metadata = keep, metadata
        self._videos, self._changed_options = videos, changed_options
        self.notes: list[str] = []

    def save(self, state: RunState) -> None:
        """Write a checkpoint to resume from.

        Raises:
            FloatingPointError: weights or statistics are not finite.
            OSError: the file cannot be written; the previous checkpoint stays.
            ReplicaError: the processes have different weights.
        """
        step = self.train_step
        check_replicas(step.task, self.world)
        content = self._content(state)
        training = asdict(state) | step.state_dict() | {"meter": self.meter.state_dict()}
        # Running statistics differ between processes until the end of an epoch.
        training["buffers"] = gather_buffers(step.model)
        training["task"] = {k: v.detach() for k, v in step.task.own_parameters().items()}
        if step.ema is not None:  # then the checkpoint's network is the average
            training["weights"] = step.model.state_dict()
            training["average_buffers"] = gather_buffers(step.ema.module)
        content["training"] = training
        on_main(lambda: save_step(self.folder, content, state.step, self.keep), self.world)

    def save_best(self, state: RunState) -> None:
        """Write the network as ``best.pt``. The errors are those of :meth:`save`."""
        content = self._content(state)
        on_main(lambda: save_checkpoint(self.folder / "best.pt", content), self.world)

    def restore(self) -> RunState:
        """Load the newest valid checkpoint, or begin the run if the folder has none.

        Call it while the folder is locked.

        Raises:
            CheckpointError: there are checkpoints, and none is valid.
            RunError: the folder belongs to a run with other options or videos.
        """
        path, self.notes = on_main(lambda: newest_checkpoint(self.folder), self.world)
        if path is None:
            on_main(self._begin, self.world)
            state = RunState()
        else:
            state = self._restore(load_checkpoint(path), path)
        on_main(self._write_config, self.world)
        check_replicas(self.train_step.task, self.world)
        return state

    def _begin(self) -> None:
        """Write the list of videos of a new run, unless it would overwrite files of the user."""
        is_ours = (self.folder / VIDEOS).exists()  # a run stopped before its first checkpoint
        for name in ("best.pt",) if is_ours else ("best.pt", "config.yaml"):
            if (self.folder / name).exists():
                raise RunError(
                    f"{self.folder / name} exists without a checkpoint to resume from, and a new "
                    "run would replace it. Move it away, or choose another log.output"
                )
        write_text(self.folder / VIDEOS, self._videos)

    def _write_config(self) -> None:
        text = yaml.safe_dump(self.metadata["config"], sort_keys=False, allow_unicode=True)
        write_text(self.folder / "config.yaml", text)

    def _restore(self, content: dict[str, Any], path: Path) -> RunState:
        """Load a checkpoint into the parts of the run."""
        training, step = content["training"], self.train_step
        changed = self._changed_options(content["meta"]["config"])
        if changed:
            raise RunError(
                f"{path} belongs to a run with other options ({'; '.join(changed[:5])}). Choose "
                "another log.output, or use the options of that run"
            )
        on_main(self._check_videos, self.world)
        step.network.load_state_dict(content["model"])
        if step.ema is not None:
            step.model.load_state_dict(training["weights"])
            load_buffers(step.ema.module, training["average_buffers"], self.world)
        load_buffers(step.model, training["buffers"], self.world)
        with torch.no_grad():
            for name, parameter in step.task.own_parameters().items():
                parameter.copy_(training["task"][name])
        step.load_state_dict(training)
        self.meter.load_state_dict(training["meter"])
        return RunState(**{one.name: training[one.name] for one in fields(RunState)})

    def _check_videos(self) -> None:
        """Raise RunError for other videos than those that the run began with."""
        before = (self.folder / VIDEOS).read_text("utf-8", "surrogateescape").split("\n")
        for old, new in zip_longest(before, self._videos.split("\n"), fillvalue="no video"):
            if old != new:
                raise RunError(
                    f"{self.folder} belongs to a run on other videos or labels than data.root "
                    f"lists now: the first change is {old!r} -> {new!r}. Restore the lists, or "
                    "choose another log.output"
                )

    def _content(self, state: RunState) -> dict[str, Any]:
        self._check_finite(state.step)
        metrics = {str(frames): dict(values) for frames, values in state.metrics.items()}
        network = self.train_step.network.state_dict()
        return {"model": network, "meta": {**self.metadata, "metrics": metrics}}

    def _check_finite(self, step: int) -> None:
        model = self.train_step.model  # its moving average is finite if it is
        statistics = [(k, v) for k, v in model.named_buffers() if "running_" in k]
        own = self.train_step.task.own_parameters().items()
        states = [*model.named_parameters(), *own, *statistics]
        wrong = [name for name, value in states if not value.isfinite().all()]
        if any_of([bool(wrong)], self.world)[0]:
            raise FloatingPointError(
                f"weights or statistics are not finite at step {step} ({', '.join(wrong[:3])}); "
                f"they are not saved, and earlier checkpoints stay. {self.train_step.advice}"
            )


def list_videos(splits: Splits, root: str | Path) -> str:
    """A line per video: split, path relative to the root, label, frames of a folder, time range."""
    start = os.path.join(os.path.abspath(root), "")
    lines = [f"class,{name}" for name in splits.classes]
    for split, records in (("train", splits.train), ("val", splits.val)):
        for one in records:
            path = os.path.abspath(one.path).removeprefix(start)
            values = (split, path, label_text(one.label), one.frames, one.start, one.end)
            lines.append(",".join("" if value is None else str(value) for value in values))
    return "\n".join(lines)


def gather_buffers(module: nn.Module) -> list[list[Tensor]]:
    """Copies on the CPU of the buffers of every process, in order of rank."""
    return gather([buffer.detach().cpu().clone() for buffer in module.buffers()])


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
