"""Save the state of a run and restore it from the newest valid checkpoint.

Order, augmentation and dropout are functions of the seed and the position, so a checkpoint holds no
random state, and a run may resume on another number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from ffn.engine.checkpoints.file import load_checkpoint
from ffn.engine.checkpoints.folder import RunFolder
from ffn.engine.checkpoints.lock import RunError
from ffn.engine.distributed import World, any_of, check_replicas, gather, on_main
from ffn.engine.freezing import frozen_buffers
from ffn.engine.logs.meter import Meter
from ffn.engine.run_videos import RunVideos
from ffn.engine.train_step import TrainStep
from ffn.files import keep_damaged, write_text
from ffn.plain_yaml import PlainLoader


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
        resume_notes: given the ``config`` of a checkpoint and the epochs done, console lines about
            options that differ and may.

    Attributes:
        saved_step: step of the last checkpoint; None without one.
        notes: messages about the folder and damaged checkpoints.
        writers: number of processes that wrote the restored checkpoint.
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
        resume_notes: Callable[[dict[str, Any], int], list[str]] = lambda config, epochs: [],
    ) -> None:
        self.folder, self.train_step, self.meter, self.world = folder, train_step, meter, world
        self.metadata = {**metadata, "data": videos.fingerprint}
        self._videos = videos
        self._changed_options, self._resume_notes = changed_options, resume_notes
        self.saved_step: int | None = None
        self.notes: list[str] = []
        self.writers = world.size
        self._infinite = infinite_buffers(train_step.model)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run's folder.

        Raises:
            ffn.engine.checkpoints.lock.FolderInUse: another run writes there.
        """
        with ExitStack() as stack:
            note = on_main(lambda: stack.enter_context(self.folder.lock()), self.world)
            self.notes = [note] if note else []
            yield

    def save(self, state: RunState, *, final: bool = False) -> None:
        """Write a checkpoint to resume from.

        After several steps in a row whose loss or gradient is not finite, the weights may be
        useless although they are finite. In that case only the first checkpoint and the final one
        are written: a run without a checkpoint could not be resumed.

        Raises:
            FloatingPointError: weights or statistics are not finite.
            CheckpointError: the file cannot be written; the previous checkpoint stays.
            ReplicaError: the processes have different weights.
        """
        is_needed = final or self.saved_step is None
        if self.train_step.non_finite_steps > 1 and not is_needed:
            return
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
        self.saved_step = state.step

    def save_best(self, state: RunState) -> None:
        """Write the network as ``best.pt``. The errors are those of :meth:`save`."""
        content = self._content(state)
        on_main(lambda: self.folder.save_best(content), self.world)

    def restore(self) -> RunState:
        """Load the newest valid checkpoint, or begin the run if the folder has none.

        Call it within :meth:`lock`. Messages for the user are added to ``notes``.

        Raises:
            CheckpointError: there are checkpoints, and none is valid.
            RunError: the folder belongs to a run with other options or videos.
        """
        found = None

        def newest() -> tuple[Path | None, list[str]]:
            nonlocal found
            found = self.folder.newest()
            return (None, []) if found is None else (found.path, found.invalid)

        path, invalid = on_main(newest, self.world)
        self.notes += [f"invalid checkpoint: {reason}" for reason in invalid]
        if path is None:
            on_main(self._begin, self.world)
            state = RunState()
        else:
            state = self._restore(found.content if found else load_checkpoint(path), path)
        check_replicas(self.train_step.model, self.world)
        if self.train_step.bad_batches is not None:
            on_main(lambda: self.train_step.bad_batches.truncate(state.step), self.world)
        return state

    def _begin(self) -> None:
        """Write the config of a new run into its folder."""
        folder = self.folder.path
        best = folder / "best.pt"
        if best.exists():
            raise RunError(
                f"{folder} holds {best.name} of a run and no checkpoint to resume from; a new run "
                "would overwrite it. Move it away, or choose another log.output"
            )
        description, log = folder / "config.yaml", folder / "log.jsonl"
        if description.is_file() and log.is_file() and log.stat().st_size:
            options = _read_options(description)
            if options is None:
                self._keep_damaged(description)
            else:
                self._check_options(options, description)
        elif description.exists() and not self._began_here(description):
            raise RunError(
                f"{description} is not of a run of ffn; a new run would replace it. Choose another "
                "log.output, such as a folder that does not exist, or rename the file"
            )
        self._videos.write(replace=True)  # first: the config of a run lies next to its videos
        self._write_options(description)

    def _began_here(self, description: Path) -> bool:
        """Whether a start of a run, which was interrupted, wrote ``config.yaml``."""
        others = (self._videos.path, description.with_name("log.jsonl"))
        if any(path.exists() for path in others):
            return True
        return description.is_file() and description.read_bytes() == self._options_text().encode()

    def update_options(self) -> None:
        """Write the options of a run that goes on into ``config.yaml``, if it has others."""
        description = self.folder.path / "config.yaml"

        def update() -> None:
            if description.is_file() and _read_options(description) != self.metadata["config"]:
                self._write_options(description)

        on_main(update, self.world)

    def _repair_options(self) -> None:
        """Write ``config.yaml`` anew if it is damaged, or has the options of another run."""
        description = self.folder.path / "config.yaml"
        if not description.is_file():
            return
        try:
            options = _read_options(description)
            changed = [] if options is None else self._changed_options(options)
        except ValueError:  # options that do not exist
            options = None
        if options is None:
            self._keep_damaged(description)
            self._write_options(description)
        elif changed:
            shown = "; ".join(changed[:5])
            self._keep_damaged(description, f"has other options than the checkpoint ({shown})")
            self._write_options(description)

    def _keep_damaged(self, description: Path, problem: str = "is damaged") -> None:
        copy = keep_damaged(description)
        self.notes.append(f"{description} {problem} and is written anew; it was kept as {copy}")

    def _write_options(self, description: Path) -> None:
        write_text(description, self._options_text())

    def _options_text(self) -> str:
        return yaml.safe_dump(self.metadata["config"], sort_keys=False, allow_unicode=True)

    def _restore(self, content: dict[str, Any], path: Path) -> RunState:
        """Load a checkpoint into the parts of the run."""
        training, meta = content["training"], content["meta"]
        self._check_options(meta["config"], path)
        self._check_classes(meta, path)
        if self._videos.differ_from(meta["data"]):
            changes = on_main(self._videos.changes, self.world)
            raise RunError(
                f"{path} was trained on other videos or labels than data.root lists now{changes}"
            )
        on_main(self._repair_options, self.world)
        on_main(lambda: self._videos.write(replace=False), self.world)
        self.notes += [
            *self._videos.notes(),
            *self._resume_notes(meta["config"], training["epoch"]),
        ]
        self._load_network(content["model"], training)
        self.train_step.load_state_dict(training)
        if "meter" in training:  # not in files of format 1
            self.meter.load_state_dict(training["meter"])
        self.saved_step = training["step"]
        self.writers = len(training["buffers"])
        return RunState(
            epoch=training["epoch"],
            step=training["step"],
            best=training["best"],
            since_best=training.get("since_best", 0),  # not in files of version 0.2
            metrics={int(frames): values for frames, values in meta["metrics"].items()},
            validation_pending=training.get("validates", False),
        )

    def _check_options(self, before: dict[str, Any], path: Path) -> None:
        changed = self._changed_options(before)
        if changed:
            raise RunError(
                f"{path} belongs to a run with other options ({'; '.join(changed[:5])}). Choose "
                "another log.output, or use the options of that run"
            )

    def _check_classes(self, meta: dict[str, Any], path: Path) -> None:
        """Refuse lists with other classes: the labels of all videos would differ."""
        before, now = meta.get("classes"), self.metadata.get("classes")
        if before == now or before is None or now is None:
            return
        pairs = zip_longest(before, now)
        number, (old, new) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise RunError(
            f"{path} was trained on {len(before)} classes, and the lists have {len(now)} now: "
            f"class {number} was {old!r} and is {new!r}. Restore the lists, which need a video of "
            "each class, or choose another log.output; a new run with data.classes=FILE has "
            "classes without videos, too"
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


def _read_options(description: Path) -> dict[str, Any] | None:
    """The options in ``config.yaml``; None if it is damaged."""
    try:
        options = yaml.load(description.read_text("utf-8"), PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) else None


def infinite_buffers(model: nn.Module) -> set[str]:
    """Names in the state dict of the buffers with infinities, such as a mask of an attention."""
    state = model.state_dict(keep_vars=True)
    floats = {k: v for k, v in state.items() if torch.is_tensor(v) and v.is_floating_point()}
    return {
        name
        for name, value in floats.items()
        if not isinstance(value, nn.Parameter) and value.isinf().any() and not value.isnan().any()
    }


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
