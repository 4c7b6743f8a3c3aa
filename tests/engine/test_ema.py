"""The moving average of the weights against its formula."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from engine_toys import batch, flexible_task
from torch import Tensor, nn

from ffn.core import FrameFlexible, PrivateModules
from ffn.engine.optim import moving_average
from ffn.engine.tasks import FlexibleTask

DECAY = 0.6


def warm(step: int) -> float:
    return min(DECAY, 1 - step ** (-2 / 3))


def steps(task: FlexibleTask, first: int, last: int) -> list[dict[str, Tensor]]:
    """The network after each of some optimizer steps."""
    optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
    states = []
    for step in range(first, last + 1):
        task.train()(batch(seed=step))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        states.append({k: v.clone() for k, v in task.model.state_dict().items()})
    return states


def test_five_steps_by_hand() -> None:
    task = flexible_task()
    average = moving_average(task.model, DECAY)
    states = []
    for step in range(1, 6):
        states += steps(task, step, step)
        average.update(task.model, step)

    assert [warm(step) for step in (1, 2, 3, 4)] == pytest.approx(
        [0, 0.3700394751, 0.5192501431, 0.6]
    )
    found = average.module.state_dict()
    assert list(found) == list(states[0])
    kinds = set()
    for key, value in found.items():
        kinds.add((value.dtype, key.rsplit(".", 1)[1]))
        if not value.is_floating_point():
            assert torch.equal(value, states[-1][key])
            assert int(value) == 5
            continue
        hand = torch.zeros_like(value, dtype=torch.float64)
        for step, state in enumerate(states, 1):
            hand = warm(step) * hand + (1 - warm(step)) * state[key].double()
        torch.testing.assert_close(value.double(), hand, rtol=1e-6, atol=1e-7)
        assert not torch.equal(value, states[-1][key])
    assert (torch.float32, "running_var") in kinds
    assert (torch.int64, "num_batches_tracked") in kinds


def test_first_weights_lose_influence() -> None:
    """For any decay: of one step of 0 before constant ones, the product of d_t is left."""
    model = nn.Linear(1, 1, bias=False)
    average = moving_average(model, 0.9999)
    nn.init.zeros_(model.weight)
    average.update(model, 1)
    nn.init.ones_(model.weight)
    for step in range(2, 201):
        average.update(model, step)

    left = math.prod(1 - step ** (-2 / 3) for step in range(2, 201))
    assert left < 1e-6
    assert 1 - float(average.module.weight) == pytest.approx(left, abs=1e-6)


def test_average_is_an_independent_network() -> None:
    task = flexible_task()
    model = task.model
    average = moving_average(model.train(), DECAY).module

    assert isinstance(average, FrameFlexible)
    assert average.report == model.report
    own = {id(m) for m in average.modules() if isinstance(m, PrivateModules)}
    assert {id(m.selected) for m in average.modules() if isinstance(m, PrivateModules)} == {
        id(average.selected)
    }
    assert average.selected is not model.selected
    assert not own & {id(m) for m in model.modules()}
    assert not any(module.training for module in average.modules())
    assert not any(p.requires_grad for p in average.parameters())
    assert all(p.requires_grad for p in model.parameters())

    clips = batch()["clips"]
    model.activate(2)
    expected = [copy.deepcopy(model).eval()(clips[t]) for t in (2, 4, 8)]
    assert all(torch.equal(average(clips[t]), e) for t, e in zip((2, 4, 8), expected, strict=True))
    assert (average.active, model.active) == (8, 2)

    moved = copy.deepcopy(average.state_dict())
    steps(task, 1, 2)
    assert all(torch.equal(average.state_dict()[key], value) for key, value in moved.items())


def test_average_restored_from_a_file_is_bit_identical(tmp_path: Path) -> None:
    task = flexible_task()
    average = moving_average(task.model, DECAY)
    for step in (1, 2, 3):
        steps(task, step, step)
        average.update(task.model, step)
    torch.save(average.module.state_dict(), tmp_path / "average.pt")
    torch.save(task.model.state_dict(), tmp_path / "model.pt")
    steps(task, 4, 4)
    average.update(task.model, 4)

    other = flexible_task()
    other.model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    continued = moving_average(other.model, DECAY)
    continued.module.load_state_dict(torch.load(tmp_path / "average.pt", weights_only=True))
    steps(other, 4, 4)
    continued.update(other.model, 4)

    for key, value in average.module.state_dict().items():
        assert torch.equal(continued.module.state_dict()[key], value), key


@pytest.mark.gpu
def test_average_is_on_the_device() -> None:
    model = nn.Linear(2, 2).cuda()
    average = moving_average(model, DECAY)
    average.update(model, 1)

    assert average.module.weight.is_cuda
