"""Collectives, equal gradients on all processes, and the check that weights are equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_toys import CPU, batch, flexible_task, in_float64, toy_step
from forked import Ranks
from torch import Tensor, nn

from ffn.engine.activation_checkpointing import checkpoint_blocks
from ffn.engine.distributed import ReplicaError, World, check_replicas, on_main
from ffn.engine.meter import Meter
from ffn.engine.optim import set_learning_rate
from ffn.engine.tasks import PlainTask


def part_of(videos: dict[str, Any], rank: int) -> dict[str, Any]:
    """The half of a batch of one of two processes, in float64."""
    halves = {t: clip.chunk(2)[rank] for t, clip in in_float64(videos)["clips"].items()}
    return {"clips": halves, "label": videos["label"].chunk(2)[rank], "skipped": []}


def half_by_half() -> dict[str, Tensor]:
    """SGD on the mean of the losses of two halves of each batch, each with its own statistics."""
    task = flexible_task().double().train()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    for step in range(3):
        videos = batch(size=8, seed=step)
        for rank in (0, 1):
            task(part_of(videos, rank))["loss"].backward()
        for parameter in task.parameters():
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    parameters = {name for name, _ in task.model.model.named_parameters()}
    return {name: v for name, v in task.model.state_dict().items() if name in parameters}


def training_steps(world: World, views: str, checkpointed: bool) -> dict[str, Tensor]:
    """Train in float64 on 8 videos per step, for three steps; return the state."""
    task = flexible_task().double()
    if checkpointed:
        checkpoint_blocks(task.model)
    step = toy_step(world, task, views)
    for number in range(3):
        own = part_of(batch(size=8, seed=number), world.rank)
        step.step([own], number=number, lr=0.01)
    return task.model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("views", "checkpointed"), [("together", False), ("together", True), ("sequential", False)]
)
def test_two_processes_train_on_the_mean_gradient(
    two_ranks: Ranks, views: str, checkpointed: bool
) -> None:
    """In DDP, and with our averages after the backward passes of each view."""
    expected = half_by_half()
    for found in two_ranks.run(training_steps, views, checkpointed):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10)


class Partial(nn.Module):
    """Classifies pixels; no step uses ``unused``, and ``runs`` decides on ``sometimes``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sometimes, self.unused = (nn.Linear(3, 3).double() for _ in range(3))
        self.runs = True

    def forward(self, clip: Tensor) -> Tensor:
        x = self.layer(clip.mean((2, 3, 4)))
        return x + self.sometimes(x) if self.runs else x


def partial_steps(world: World, views: str, plan: list[list[bool]]) -> dict[str, Tensor]:
    """Train in float64; ``plan`` has for each step whether a rank uses a layer."""
    torch.manual_seed(0)
    task = PlainTask(Partial(), 4)
    step = toy_step(world, task, views, weight_decay=0.1)
    for number, runs in enumerate(plan):
        for rank in range(2) if world.size == 1 else [world.rank]:
            own = part_of(batch((4,), seed=number), rank)
            task.model.runs = runs[rank]
            if world.size > 1:
                step.step([own], number=number, lr=0.1)
            else:
                (task(own)["loss"] / 2).backward()
        if world.size == 1:
            set_learning_rate(step.optimizer, 0.1)
            step.optimizer.step()
            step.optimizer.zero_grad()
    return task.model.state_dict()


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_layers_without_a_gradient(two_ranks: Ranks, views: str) -> None:
    """A layer that no process uses stays; one that a process does not use has half a gradient."""
    plan = [[True, False], [True, True], [False, False], [False, True]]
    expected = partial_steps(CPU, views, plan)
    for found in two_ranks.run(partial_steps, views, plan):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_steps_with_empty_micro_batches_are_skipped_by_all(two_ranks: Ranks, views: str) -> None:
    full = [[1, 1], [1, 1]]
    plan = [full, [[1, 0], [1, 1]], [[1, 1], [0, 1]], [[0, 0], [0, 0]], full]
    one, other = two_ranks.run(steps_with_empty_batches, plan, views)
    for found in (one, other):
        assert found["warned"] == [False, True, True, True, False]
        assert found["means"] == one["means"]
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    alone = steps_with_empty_batches(CPU, [[[1]], [[0]], [[1]]], views)
    assert alone["warned"] == [False, True, False]


def check_with_change(world: World, name: str, rank: int) -> str:
    """Flip the lowest bit of one element on one rank; return the error of the check."""
    model = flexible_task((2, 4)).model
    if world.rank == rank:
        bits = model.state_dict()[name].view(-1).view(torch.int32)
        bits[len(bits) // 2] ^= 1
    try:
        check_replicas(model, world)
    except ReplicaError as error:
        return str(error)
    return ""


def test_one_changed_bit_is_found(two_ranks: Ranks) -> None:
    """Statistics may differ."""
    name = "net.layer3.0.conv1.weight"
    for rank in (0, 1):
        for message in two_ranks.run(check_with_change, name, rank):
            assert "weights on rank(s) 1 differ" in message
    assert two_ranks.run(check_with_change, "net.layer1.0.bn1.4.running_var", 1) == ["", ""]


def failing_on_main(world: World) -> tuple[int, str]:
    value = on_main(lambda: world.rank + 7, world)

    def fail() -> None:
        raise ValueError(f"on rank {world.rank}")

    with pytest.raises(ValueError, match="on rank") as found:
        on_main(fail, world)
    return value, str(found.value)


def test_results_and_errors_of_the_main_process_are_on_all(two_ranks: Ranks) -> None:
    assert two_ranks.run(failing_on_main) == [(7, "on rank 0")] * 2
