"""Collectives, equal gradients on all processes, and the check that weights are equal."""

from __future__ import annotations

import pytest
import torch
from engine_toys import batch, flexible_task
from rank_cases import ONE, share, steps_with_empty_batches, training_steps
from ranks import Ranks
from torch import Tensor

from ffn.engine.distributed import (
    ReplicaError,
    World,
    average_gradients,
    broadcast_parameters,
    check_replicas,
    on_main,
)

NAME = "model.net.layer3.0.conv1.weight"


def half_by_half(steps: int) -> dict[str, Tensor]:
    """SGD on the mean of the losses of two halves of each batch, each with its own statistics."""
    task = flexible_task().double().train()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    for step in range(steps):
        videos = batch(size=8, seed=step)
        for rank in (0, 1):
            world = World(rank, 2, torch.device("cpu"))
            clips = {t: share(clip.double(), world) for t, clip in videos["clips"].items()}
            task({"clips": clips, "label": share(videos["label"], world)})["loss"].backward()
        for parameter in task.parameters():
            parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()
    parameters = {name for name, _ in task.model.model.named_parameters()}
    return {name: v for name, v in task.model.state_dict().items() if name in parameters}


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_two_processes_train_on_the_mean_gradient(two_ranks: Ranks, views: str) -> None:
    """In DDP, and with our averages after the backward passes of each view."""
    expected = half_by_half(3)
    for found in two_ranks.run(training_steps, views, torch.float64, 3):
        for name, value in expected.items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_steps_with_empty_micro_batches_are_skipped_by_all(two_ranks: Ranks, views: str) -> None:
    full = [[1, 1], [1, 1]]
    plan = [full, [[1, 0], [1, 1]], [[1, 1], [0, 1]], [[0, 0], [0, 0]], full]
    one, other = two_ranks.run(steps_with_empty_batches, plan, views)
    for found in (one, other):
        assert [bool(text) for text in found["warnings"]] == [False, True, True, True, False]
        assert found["means"] == one["means"]
    assert all(torch.equal(value, other["weights"][key]) for key, value in one["weights"].items())
    for key, value in steps_with_empty_batches(ONE, [[[1]], [[0]], [[1]]], views).items():
        assert key != "warnings" or [bool(text) for text in value] == [False, True, False]


def broadcast(world: World) -> dict[str, Tensor]:
    model = flexible_task((2, 4)).model
    for parameter in model.parameters():
        parameter.data += world.rank
    broadcast_parameters(model, world)
    check_replicas(model, world)
    return dict(model.named_parameters())


def test_parameters_of_rank_0_are_broadcast(two_ranks: Ranks) -> None:
    expected = dict(flexible_task((2, 4)).model.named_parameters())
    for parameters in two_ranks.run(broadcast):
        assert all(torch.equal(parameters[name], value) for name, value in expected.items())


def check_with_change(world: World, name: str, rank: int) -> str:
    """Flip the lowest bit of one element on one rank; return the error of the check."""
    model = flexible_task((2, 4)).model
    if world.rank == rank:
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        bits = tensors[name].detach().view(-1).view(torch.int32)
        bits[len(bits) // 2] ^= 1
    try:
        check_replicas(model, world)
    except ReplicaError as error:
        return str(error)
    return ""


def test_one_changed_bit_is_found_and_named(two_ranks: Ranks) -> None:
    for rank in (0, 1):
        for message in two_ranks.run(check_with_change, NAME, rank):
            assert f"first {NAME}: rank(s) 1 from rank 0" in message
    statistics = "model.net.layer1.0.bn1.4.running_var"  # may differ
    assert two_ranks.run(check_with_change, statistics, 1) == ["", ""]


def failing_on_main(world: World) -> tuple[int, str]:
    value = on_main(lambda: world.rank + 7, world)

    def fail() -> None:
        raise ValueError(f"on rank {world.rank}")

    try:
        on_main(fail, world)
    except ValueError as error:
        return value, str(error)
    return value, ""


def test_results_and_errors_of_the_main_process_are_on_all(two_ranks: Ranks) -> None:
    assert two_ranks.run(failing_on_main) == [(7, "on rank 0")] * 2


def test_one_process_needs_no_collective() -> None:
    model = flexible_task((2, 4)).model
    check_replicas(model, ONE)
    broadcast_parameters(model, ONE)
    average_gradients(model.parameters(), ONE)
