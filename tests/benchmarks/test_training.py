"""The timed training step is the train step of a run."""

from __future__ import annotations

import copy

import pytest
import torch

from ffn.benchmarks import training
from ffn.benchmarks.timing import tensor_bytes
from ffn.cli.benchmark import build_step

CPU = torch.device("cpu")


@pytest.mark.parametrize("views", ["together", "sequential"])
def test_a_timed_step_is_sgd_on_the_sum_of_the_losses(views: str) -> None:
    """The first step of SGD by hand; the gradients are small and not clipped."""
    torch.manual_seed(0)
    options = [f"train.views={views}", "optim.weight_decay=0", "model.dropout=0"]
    step = build_step("tsm_tiny", 3, CPU, "flexible", [2, 4], options)
    expected = copy.deepcopy(step.task)
    batch = training._batch([2, 4], 4, 32, 3, CPU)

    training._call(step, batch)()

    clips = {t: step.normalize(clip) for t, clip in batch["clips"].items()}
    expected({"clips": clips, "label": batch["label"]})["loss"].backward()
    norm = sum(p.grad.square().sum() for p in expected.parameters()).sqrt()
    assert 0.1 < norm < 20
    scale = {id(p): g["lr_scale"] for g in step.optimizer.param_groups for p in g["params"]}
    ours = dict(step.task.named_parameters())
    with torch.no_grad():
        for name, p in expected.named_parameters():
            p -= training.LR * scale[id(ours[name])] * p.grad
    torch.testing.assert_close(step.task.state_dict(), expected.state_dict(), rtol=1e-4, atol=1e-5)
    assert all(p.grad is None for p in step.task.parameters())


def test_memory_between_steps_is_weights_statistics_their_copies_and_momentum() -> None:
    step = build_step("tsm_tiny", 3, CPU, "plain", [2])
    parameters = tensor_bytes(step.task.parameters())
    buffers = tensor_bytes(step.task.buffers())

    assert training.held_bytes(step) == parameters + 2 * buffers
    training._call(step, training._batch([2], 2, 32, 3, CPU))()

    assert training.held_bytes(step) == 2 * parameters + 2 * buffers
