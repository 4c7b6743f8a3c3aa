"""Memory of the timed training step."""

from __future__ import annotations

import torch

from ffn.benchmarks import training
from ffn.benchmarks.timing import tensor_bytes
from ffn.cli.benchmark import build_step

CPU = torch.device("cpu")


def test_memory_between_steps_is_weights_statistics_their_copies_and_momentum() -> None:
    step = build_step("tsm_tiny", 3, CPU, "plain", [2])
    parameters = tensor_bytes(step.task.parameters())
    buffers = tensor_bytes(step.task.buffers())

    assert training.held_bytes(step) == 2 * parameters + 2 * buffers
