"""Precise statistics, compared with numpy, with torch's norms, and between one process and two."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import batch, build, flexible_task
from rank_cases import ONE, statistics_of_batches
from ranks import Ranks
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from ffn import backbones
from ffn.core import PrivateModules, convert, nearest
from ffn.engine.precise_bn import update_precise_bn
from ffn.engine.train_step import seed_step, to_device

BATCHES = [batch((2, 4), size=size, seed=size) for size in (4, 3, 5)]  # of different sizes
CLIPS = [clip for one in BATCHES for clip in one["clips"].values()]


def expected(inputs: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the batches of mean and unbiased variance per channel of (N, C, …) tensors."""
    values = [x.movedim(1, 0).flatten(1).double().numpy() for x in inputs]
    return np.mean([v.mean(1) for v in values], 0), np.mean([v.var(1, ddof=1) for v in values], 0)


def check(norm: Any, inputs: list[Tensor], rtol: float = 1e-5) -> None:
    mean, variance = expected(inputs)
    np.testing.assert_allclose(norm.running_mean.numpy(), mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(norm.running_var.numpy(), variance, rtol=rtol)


class First(nn.Module):
    """A network whose first layer is a norm."""

    def __init__(self, mean: float = 0.0) -> None:
        super().__init__()
        self.mean = mean
        self.norm = nn.BatchNorm3d(3)
        self.head = nn.Linear(3, 2)

    def forward(self, clip: Tensor) -> Tensor:
        return self.head(self.norm(clip + self.mean).mean((2, 3, 4)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("slowfast_tiny", nn.BatchNorm3d),
        ("tsm.mobilenetv3_small_050", BatchNormAct2d),
    ],
)
def test_one_batch_is_a_step_with_momentum_one(name: str, kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = backbones.build(name, num_classes=3, dropout=0.0)
    reference = copy.deepcopy(model).train()
    norms = {n: m for n, m in reference.named_modules() if isinstance(m, nn.BatchNorm2d | kind)}
    assert any(type(m) is kind for m in norms.values())
    for norm in norms.values():
        norm.momentum = 1.0
    clip = torch.randn(4, 3, 4, 32, 32)
    with torch.no_grad():
        reference(clip)

    assert update_precise_bn(model.eval(), [clip], ONE) == len(norms)

    for key, norm in norms.items():
        found = model.get_submodule(key)
        torch.testing.assert_close(found.running_mean, norm.running_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.running_var, norm.running_var, rtol=1e-4, atol=1e-6)
        assert int(found.num_batches_tracked) == 1


def test_a_shared_norm_has_the_statistics_of_all_views() -> None:
    model = convert(First(), (2, 4), private="none", alter="none")

    update_precise_bn(model, CLIPS, ONE)

    check(model.model.norm, [b["clips"][count] for b in BATCHES for count in (2, 4)])
    assert int(model.model.norm.num_batches_tracked) == 6


def test_only_running_statistics_change() -> None:
    model = flexible_task((2, 4), dropout=0.5).model.train()
    model.model.net.layer1.eval()
    model.activate(2)
    before = copy.deepcopy(model)
    random = torch.get_rng_state()

    update_precise_bn(model, CLIPS, ONE)

    assert torch.equal(torch.get_rng_state(), random)  # dropout was off
    assert model.active == 2
    modes, old = ([m.training for m in one.modules()] for one in (model, before))
    assert modes == old
    for parameter, old in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    changed = {n for n, b in before.named_buffers() if not torch.equal(b, model.get_buffer(n))}
    assert len(changed) == 3 * 2 * 14
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert {name.rsplit(".", 1)[1] for name in changed} == statistics


def test_only_norms_that_a_view_uses_are_set() -> None:
    model = convert(First(), (2, 4), alter="none")
    model.unused = nn.BatchNorm2d(3)

    update_precise_bn(model, [clip for clip in CLIPS if clip.shape[2] == 2], ONE)

    for norm in (model.model.norm["4"], model.unused):
        assert int(norm.num_batches_tracked) == 0
        assert torch.equal(norm.running_var, torch.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("shares", [[1, 3], [4, 0]])
def test_two_processes_equal_one(two_ranks: Ranks, shares: list[int]) -> None:
    expected = statistics_of_batches(ONE, [4])
    found = two_ranks.run(statistics_of_batches, shares)

    assert len(expected) == 3 * 2 * 14
    for key, value in expected.items():
        assert torch.equal(found[0][key], found[1][key])
        if key.endswith("tracked"):
            assert int(found[0][key]) == sum(shares)
        else:
            torch.testing.assert_close(found[0][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "task",
    [
        ("task.frames=[2,4]",),
        ("task.frames=[1,3,8]", "task.ranges=[[1,2],[3,5],[6,12]]", "task.draws=[[1,4],[5,12]]"),
        ("task.name=mixed_sampling", "task.frames=[2,4]", "task.mix_probability=0.6"),
        ("task.name=proportional_sampling", "task.frames=[2,4]"),
    ],
    ids=["flexible", "draws", "mixed", "proportional"],
)
def test_statistics_of_a_run_are_those_of_its_clips(
    videos: Path, tmp_path: Path, task: tuple[str, ...]
) -> None:
    """Those of the first norm, after a convolution; without mixup."""
    more = ("train.precise_bn=6", "train.batch_size=4", "train.mixup=0.8")
    run = build(videos, tmp_path / "run", *task, *more)
    assert run.validator.update_statistics(1) == []

    step, inputs = run.train_step, {}
    conv, norm, *_ = getattr(step.model, "model", step.model).net.conv1
    private = isinstance(norm, PrivateModules)
    seed_step(step.seed, 1, 0)
    run.train_loader.sampler.set_epoch(1)
    for one in run.train_loader:
        for clip in step.task.clips(to_device(one, ONE.device, step.normalize)).values():
            x = conv(clip.transpose(1, 2).flatten(0, 1)).detach()
            owner = nearest(clip.shape[2], step.model.ranges) if private else ""
            inputs.setdefault(owner, []).append(x)
    assert len(inputs) == (len(norm) if private else 1)
    for owner, seen in inputs.items():
        check(norm[str(owner)] if owner else norm, seen)
