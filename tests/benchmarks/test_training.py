"""The training step of the benchmark against plain SGD."""

from __future__ import annotations

import copy

import pytest
import torch

from ffn.benchmarks.timing import tensor_bytes
from ffn.benchmarks.training import build_step

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "options",
    [(), ("train.views=sequential",), ("train.activation_checkpointing=true",)],
    ids=["together", "sequential", "checkpointing"],
)
def test_a_step_is_sgd_on_the_sum_of_the_losses(options: tuple[str, ...]) -> None:
    """The first step of SGD by hand; the gradients are small, so that nothing is clipped."""
    options = (*options, "model.dropout=0", "optim.lr=0.5", "optim.weight_decay=0")
    torch.manual_seed(0)
    step = build_step("tsm_tiny", "flexible", [2, 4], num_classes=3, device=CPU, options=options)
    expected = copy.deepcopy(step.task)
    clips = {t: torch.randn(4, 3, t, 32, 32) for t in (2, 4)}
    batch = {"clips": clips, "label": torch.tensor([0, 2, 1, 1])}

    step(batch)

    expected(batch)["loss"].backward()
    norm = sum(p.grad.square().sum() for p in expected.parameters()).sqrt()
    assert 0.1 < norm < 20
    with torch.no_grad():
        for p in expected.parameters():
            p -= 0.5 * p.grad
    torch.testing.assert_close(step.task.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in step.task.parameters())


def test_memory_between_steps_is_weights_statistics_and_momentum() -> None:
    step = build_step("tsm_tiny", "plain", [2], num_classes=3, device=CPU)
    parameters = tensor_bytes(step.task.parameters())
    buffers = tensor_bytes(step.task.buffers())

    assert step.held_bytes() == parameters + buffers
    step({"clips": {2: torch.randn(2, 3, 2, 32, 32)}, "label": torch.tensor([0, 1])})

    assert step.held_bytes() == 2 * parameters + buffers
