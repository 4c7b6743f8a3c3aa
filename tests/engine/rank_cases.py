"""Functions that tests run on one process and on several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from engine_toys import batch, config, flexible_task
from torch import Tensor, nn

from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.build import build_run
from ffn.engine.distributed import World, average_buffers
from ffn.engine.freezing import freeze
from ffn.engine.logs.meter import Meter
from ffn.engine.tasks import Task
from ffn.engine.train_step import TrainStep

ONE = World(0, 1, torch.device("cpu"))


def toy_step(world: World, task: Task, views: str, **more: Any) -> TrainStep:
    """A train step with SGD that takes batches as they are."""
    optimizer = torch.optim.SGD([{"params": list(task.parameters()), "lr_scale": 1.0}], 0.01)
    return TrainStep(
        task.train(),
        optimizer,
        world,
        normalize=nn.Identity(),
        batch_mix=lambda batch, **_: batch,
        sequential=views == "sequential",
        **more,
    )


def training_steps(
    world: World, views: str, dtype: torch.dtype, steps: int, checkpointed: bool = False
) -> dict[str, Any]:
    """Train a frame-flexible network with SGD on 8 videos per step; return losses and state."""
    task = flexible_task().to(dtype)
    if checkpointed:
        checkpoint_blocks(task.model)
    step, losses = toy_step(world, task, views), []
    for number in range(steps):
        videos = batch(size=8, seed=number)
        clips = {t: share(clip.to(dtype), world) for t, clip in videos["clips"].items()}
        own = {"clips": clips, "label": share(videos["label"], world), "skipped": []}
        (outputs,) = step.step([own], number=number, lr=0.01).outputs
        losses.append({k: float(v.detach()) for k, v in outputs.items() if k.startswith("loss")})
    return {"losses": losses, "state": task.model.state_dict()}


def share(values: Tensor, world: World) -> Tensor:
    """Return this process's part of a batch."""
    return values.chunk(world.size)[world.rank]


def steps_of_run(world: World, root: Path, output: Path, more: tuple[str, ...]) -> dict[str, Any]:
    """Train the first epoch of a run; return the frames of each step and the final state."""
    run = build_run(config(root, output, *more), world)
    run.train_loader.sampler.set_epoch(0)
    counts = []

    def watched() -> Iterator[dict[str, Any]]:
        for one in run.train_loader:
            counts.append(max(clip.shape[2] for clip in one["clips"].values()))
            yield one

    batches = watched()
    for number in range(run.steps_per_epoch):
        assert run.train_step.step(batches, number=number, lr=0.1).updated
    return {"counts": counts, "state": run.train_step.model.state_dict()}


def averaged_statistics(world: World) -> dict[str, bool]:
    """Whether statistics that are equal on all processes stay the same when they are averaged."""
    torch.manual_seed(0)
    norms = nn.ModuleDict({name: nn.BatchNorm1d(100) for name in ("frozen", "trained")})
    freeze(norms, "frozen")
    for norm in norms.values():
        norm.running_var.uniform_(1, 2)
    before = {name: norm.running_var.clone() for name, norm in norms.items()}
    average_buffers(norms, world)
    return {name: torch.equal(norm.running_var, before[name]) for name, norm in norms.items()}


def steps_with_empty_batches(
    world: World, plan: list[list[list[int]]], views: str
) -> dict[str, Any]:
    """Train on micro-batches; those that the plan gives 0 for this rank have no videos."""
    task = flexible_task()
    step = toy_step(world, task, views, grad_accum_steps=len(plan[0][0]), may_skip=True)
    meter, warned = Meter(world), []
    for number, ranks in enumerate(plan):
        batches = []
        for micro, has_videos in enumerate(ranks[world.rank]):
            videos = batch(seed=100 * number + 10 * world.rank + micro) | {"skipped": []}
            empty = {"clips": {}, "label": torch.arange(0), "skipped": ["a.mp4: bad"]}
            batches.append(videos if has_videos else empty)
        result = step.step(batches, number=number, lr=0.01)
        meter.add(result)
        warned.append(bool(result.warning))
    weights = {name: value.detach() for name, value in task.model.named_parameters()}
    return {"weights": weights, "warned": warned, "means": meter.means()}
