"""Finds what a run left, and goes on as if it had never stopped.

Order, augmentation and dropout are functions of the seed and the position, so a checkpoint holds no
state of theirs, and a run may go on with another number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ffn.engine.checkpoint import CheckpointError, load_checkpoint
from ffn.engine.config import ConfigError, config_from_dict, config_to_dict
from ffn.engine.distributed import World, gather, on_main
from ffn.engine.options import Config
from ffn.files import write_text

if TYPE_CHECKING:
    from ffn.engine.loop import Trainer

# Options that a continued run may change: they say where and how, not what is computed.
FREE = (
    "log",
    "data.root",
    "data.store",
    "data.workers",
    "data.timeout",
    "data.decoder",
    "data.cache_gib",
    "train.grad_accum_steps",
    "train.views",
    "train.activation_checkpointing",
    "train.compile",
    "train.deterministic",
    "train.save_steps",
    "train.keep_checkpoints",
    "train.max_bad_steps",
)


def check_same_run(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse to continue a run under options that change what it computes.

    Args:
        before: the config in the checkpoint, as nested dicts.
        now: the config given.
        path: of the checkpoint, for the message.

    Raises:
        ConfigError: an option differs that is not in `FREE`; the message names both values.
    """
    old, new = _flat(before), _flat(now)
    changed = [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(FREE)
    ]
    if changed:
        raise ConfigError(
            f"{path} belongs to a run with other options ({'; '.join(changed[:5])}). Choose "
            "another log.output, or continue with the options it had."
        )


@contextmanager
def claimed(trainer: Trainer) -> Iterator[None]:
    """Hold the run's folder, so that no other run writes there.

    Raises:
        ffn.engine.run_lock.FolderInUse: one does already.
    """
    with ExitStack() as stack:
        note = on_main(lambda: stack.enter_context(trainer.checkpoints.lock()), trainer.world)
        trainer.notes = [note] if note else []
        yield


def resume(trainer: Trainer) -> None:
    """Continue from the newest good checkpoint if the folder has one; else begin it.

    Args:
        trainer: freshly built; its folder is claimed. What happened is added to its ``notes``.

    Raises:
        CheckpointError: there are checkpoints, and none is good.
        ConfigError: the folder belongs to a run with other options or other videos.
    """
    world, found = trainer.world, None

    def newest() -> tuple[Path | None, list[str]]:
        nonlocal found
        found = trainer.checkpoints.newest()
        return (None, []) if found is None else (found.path, found.passed_over)

    path, passed_over = on_main(newest, world)
    trainer.notes += [f"passed over: {reason}" for reason in passed_over]
    if path is None:
        on_main(lambda: begin(trainer.folder, trainer.config), world)
    else:
        before = restore(trainer, found.content if found else load_checkpoint(path), path)
        trainer.saved = trainer.step
        if before != world.size and not trainer.done:
            trainer.notes.append(
                f"{path} was written by {before} process(es), now {world.size} go on: running "
                "statistics are the mean of theirs"
            )
    on_main(lambda: trainer.stepper.guard.forget_after(trainer.step), world)


def begin(folder: Path, config: Config) -> None:
    """Write the config of a new run into its folder.

    Raises:
        ConfigError: a run with other options has logged steps there, without a checkpoint yet, or
            one left its best network there and nothing to continue from.
    """
    best = folder / "best.pt"
    if best.exists():
        raise ConfigError(
            f"{folder} holds the best network of a run, {best.name}, and no checkpoint to continue "
            "from: a new run would overwrite it. Move it away, or choose another log.output"
        )
    description, log = folder / "config.yaml", folder / "log.jsonl"
    if description.is_file() and log.is_file() and log.stat().st_size:
        before = config_from_dict(OmegaConf.to_container(OmegaConf.load(description)))
        check_same_run(config_to_dict(before), config_to_dict(config), description)
    write_text(description, OmegaConf.to_yaml(config_to_dict(config)))


def restore(trainer: Trainer, content: dict[str, Any], path: Path) -> int:
    """Put a run where a checkpoint says.

    Args:
        trainer: freshly built.
        content: of the checkpoint.
        path: of it, for messages.

    Returns:
        The number of processes that wrote it.

    Raises:
        CheckpointError: it holds weights alone.
        ConfigError: it belongs to a run with other options or other videos.
    """
    training, meta = content.get("training"), content["meta"]
    if training is None:
        raise CheckpointError(f"{path} has no training state to continue from")
    before = config_from_dict(meta["config"])  # options newer than it: the default
    check_same_run(config_to_dict(before), config_to_dict(trainer.config), path)
    now = trainer.videos.fingerprint()
    if any(now.get(key) != value for key, value in meta["data"].items()):
        raise ConfigError(
            f"{path} was trained on other videos or labels than {trainer.config.data.root} lists "
            "now; restore the lists, or choose another log.output"
        )
    trainer.stepper.load_state(content["model"], training)
    if "meter" in training:  # not in files of format 1
        trainer.meter.load_state(training["meter"])
        trainer.validates = training["validates"]
    trainer.epoch, trainer.step = training["epoch"], training["step"]
    trainer.best = training["best"]
    trainer.metrics = {int(t): m for t, m in meta["metrics"].items()}
    return len(training["buffers"])


def gather_buffers(model: nn.Module, world: World) -> list[list[Tensor]]:
    """Buffers of every process: running statistics differ between processes until averaged."""
    return gather([buffer.detach().cpu().clone() for buffer in model.buffers()], world)


def load_buffers(model: nn.Module, saved: list[list[Tensor]], world: World) -> None:
    """Put back what :func:`gather_buffers` returned, in place.

    With another number of processes than before, all get the mean over those there were; counters
    are those of the first.
    """
    same = len(saved) == world.size
    for position, buffer in enumerate(model.buffers()):
        if same:
            value = saved[world.rank][position]
        elif buffer.is_floating_point():
            value = torch.stack([own[position] for own in saved]).mean(0)
        else:
            value = saved[0][position]
        buffer.copy_(value)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
