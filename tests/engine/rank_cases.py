"""Functions that tests run on one process and on several."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from engine_toys import batch, flexible_task
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.build import build_run
from ffn.engine.distributed import World, average_buffers, average_gradients
from ffn.engine.freezing import freeze
from ffn.engine.logs.meter import Meter
from ffn.engine.options import Config
from ffn.engine.precise_bn import update_precise_bn
from ffn.engine.sync_bn import convert_sync_bn
from ffn.engine.train_step import TrainStep, backward_each_view

CHANNELS = 5
ONE = World(0, 1, torch.device("cpu"))
NORMS: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, {}, ()),
    "1d of sequences": (nn.BatchNorm1d, {"momentum": 0.3}, (4,)),
    "2d": (nn.BatchNorm2d, {"eps": 1e-3}, (3, 4)),
    "3d": (nn.BatchNorm3d, {}, (2, 3, 3)),
    "no affine": (nn.BatchNorm2d, {"affine": False}, (3, 3)),
    "cumulative": (nn.BatchNorm2d, {"momentum": None}, (3, 3)),
    "no statistics": (nn.BatchNorm2d, {"track_running_stats": False}, (3, 3)),
    "with activation": (BatchNormAct2d, {"act_layer": nn.SiLU}, (3, 3)),
    "activation in place": (BatchNormAct2d, {"affine": False, "inplace": True}, (3, 3)),
}


def norm_steps(
    world: World, name: str, dtype: torch.dtype, shares: list[int], device: str = "cpu"
) -> dict[str, Tensor]:
    """Run a norm forward and backward three times; rank r has ``shares[r]`` items of the batch."""
    kind, options, rest = NORMS[name]
    torch.manual_seed(0)
    norm = kind(CHANNELS, **options)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    world = dataclasses.replace(world, device=torch.device(device))
    norm = convert_sync_bn(norm.to(dtype), world).to(device)
    found: dict[str, Tensor] = {}
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        shape = (sum(shares), CHANNELS, *rest)
        # A large mean: sums of squares would lose four digits.
        x = 100 + 3 * torch.randn(shape, generator=generator, dtype=dtype)
        goal = torch.randn(shape, generator=generator, dtype=dtype)
        if world.size > 1:
            x, goal = (values.split(shares)[world.rank] for values in (x, goal))
        x = x.to(device).requires_grad_()
        y = norm(x)
        (y.sigmoid() * goal.to(device)).sum().backward()
        found |= {f"{step} output": y.detach(), f"{step} input gradient": x.grad}
    found |= {f"gradient of {n}": p.grad for n, p in norm.named_parameters()}
    found |= {f"buffer {n}": b for n, b in norm.named_buffers()}
    return {key: value.cpu() for key, value in found.items()}


def training_steps(
    world: World, views: str, dtype: torch.dtype, steps: int, checkpointed: bool = False
) -> dict[str, Any]:
    """Train a frame-flexible network with SGD on 8 videos per step; return losses and state."""
    task = flexible_task().to(dtype).train()
    task.model = convert_sync_bn(task.model, world)
    if checkpointed:
        checkpoint_blocks(task.model)
    together = world.size > 1 and views == "together"
    with warnings.catch_warnings():  # new versions of torch rename the option
        warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
        wrapped = DistributedDataParallel(task, broadcast_buffers=False) if together else task
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=False)
    losses = []
    for step in range(steps):
        videos = batch(size=8, seed=step)
        clips = {t: share(clip.to(dtype), world) for t, clip in videos["clips"].items()}
        videos = {"clips": clips, "label": share(videos["label"], world)}
        if views == "together":
            outputs = wrapped(videos)
            outputs["loss"].backward()
        else:
            outputs = backward_each_view(task, videos, 1.0, scaler, autocast)
            average_gradients(task.parameters(), world)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append({k: float(v.detach()) for k, v in outputs.items() if k.startswith("loss")})
    return {"losses": losses, "state": task.model.state_dict()}


def share(values: Tensor, world: World) -> Tensor:
    """Return this process's part of a batch."""
    return values.chunk(world.size)[world.rank]


def modes_of_a_synchronized_norm(world: World) -> dict[str, bool]:
    """Check a norm in evaluation, frozen, and without tracking; inputs differ between ranks."""
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3)
    nn.init.uniform_(plain.running_mean)
    norm = convert_sync_bn(nn.Sequential(plain), world)[0]
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(world.rank))
    before = {key: value.clone() for key, value in norm.state_dict().items()}

    def unchanged() -> bool:
        return all(torch.equal(before[key], value) for key, value in norm.state_dict().items())

    found = {}
    norm.track_running_stats = False
    untracked = norm(x)
    found["untracked keeps statistics"] = unchanged()
    norm.track_running_stats = True
    found["untracked output"] = torch.equal(untracked, norm(x))
    found["tracked moves statistics"] = not unchanged()
    norm.load_state_dict(before)

    plain.eval(), norm.eval()
    if world.rank == 0:  # without the other process: no collective is called
        found["evaluation"] = torch.equal(norm(x), plain(x)) and unchanged()

    norm.train().requires_grad_(False)
    x.requires_grad_()
    norm(x).square().sum().backward()
    found["frozen affine"] = norm.weight.grad is None and bool(x.grad.abs().sum() > 0)
    return found


def one_value_per_channel(world: World) -> str:
    norm = convert_sync_bn(nn.Sequential(nn.BatchNorm1d(3)), world)
    try:
        norm(torch.ones(1 if world.rank == 0 else 0, 3))
    except ValueError as error:
        return str(error)
    return ""


def statistics_of_batches(world: World, shares: list[int], synchronized: bool) -> dict[str, Any]:
    """Compute precise statistics of a frame-flexible network.

    Rank r has ``shares[r]`` of the batches. With synchronized norms, each rank has a part of every
    batch.
    """
    model = flexible_task((2, 4)).double().model
    batches = [batch((2, 4), size=6, seed=seed) for seed in range(sum(shares))]
    batches = [{"clips": {t: c.double() for t, c in b["clips"].items()}} for b in batches]
    if synchronized:
        model = convert_sync_bn(model, world)
        batches = [{"clips": {t: share(c, world) for t, c in b["clips"].items()}} for b in batches]
    else:
        first = sum(shares[: world.rank])
        batches = batches[first : first + shares[world.rank]]
    update_precise_bn(model, batches, world)
    return dict(model.named_buffers())


def coarse_and_checkpointed(world: World) -> dict[str, Tensor]:
    """Run a norm on bfloat16 values with activation checkpointing."""
    norm = convert_sync_bn(nn.Sequential(nn.BatchNorm2d(3)), world)[0]
    x = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = share(x.bfloat16(), world).requires_grad_()
    y = checkpoint(norm, x, use_reentrant=False)
    y.float().sigmoid().square().sum().backward()
    return {"output": y.detach(), "input gradient": x.grad, "gradient": norm.weight.grad}


def steps_of_run(world: World, config: Config) -> dict[str, Any]:
    """Train the first epoch of a run; return the frames of each step and the final state."""
    run = build_run(config, world)
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


def skipping_steps(
    world: World, plan: list[list[list[int]]], views: str, synchronized: bool
) -> dict[str, Any]:
    """Train on micro-batches; those that the plan gives 0 for this rank have no videos."""
    task = flexible_task().train()
    if synchronized:
        task.model = convert_sync_bn(task.model, world)
    step = TrainStep(
        task,
        torch.optim.SGD([{"params": list(task.parameters()), "lr_scale": 1.0}], 0.01, momentum=0.9),
        world,
        normalize=nn.Identity(),
        batch_mix=lambda batch, **_: batch,
        sequential=views == "sequential",
        grad_accum_steps=len(plan[0][0]),
        may_skip=True,
    )
    meter, warned = Meter(world), []
    for number, ranks in enumerate(plan):
        batches = []
        for micro, has_videos in enumerate(ranks[world.rank]):
            videos = batch(seed=100 * number + 10 * world.rank + micro)
            index = torch.arange(4)
            videos |= {"index": index, "skipped": []}
            empty = {"clips": {}, "label": index[:0], "index": index[:0], "skipped": ["a.mp4: bad"]}
            batches.append(videos if has_videos else empty)
        result = step.step(batches, number=number, lr=0.01)
        meter.add(result)
        warned.append(result.warning)
    weights = {name: value.detach() for name, value in task.model.named_parameters()}
    return {"weights": weights, "warnings": warned, "means": meter.means()}


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
