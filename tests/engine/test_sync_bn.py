"""Synchronized BatchNorm on several processes, compared with one process and the whole batch."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import tiny
from rank_cases import (
    NORMS,
    ONE,
    coarse_and_checkpointed,
    modes_of_a_synchronized_norm,
    norm_steps,
    one_value_per_channel,
    training_steps,
)
from ranks import Ranks
from timm.layers import BatchNormAct2d
from timm.layers.norm_act import SyncBatchNormAct
from timm.layers.split_batchnorm import SplitBatchNorm2d
from torch import nn

from ffn import backbones
from ffn.core import NORMS as NORM_KINDS
from ffn.core import PrivateModules, convert, extract
from ffn.engine.distributed import World
from ffn.engine.sync_bn import CpuSyncBatchNorm, channel_moments, combine, convert_sync_bn

TWO = World(0, 2, torch.device("cpu"))
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}


def whole(parts: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    """Combine the results of all processes into those of one process."""
    values = [part[name] for part in parts]
    if name.startswith("gradient"):
        return torch.stack(values).sum(0)
    if name.startswith("buffer"):
        assert all(torch.equal(value, values[0]) for value in values)
        return values[0]
    return torch.cat(values)


def check_norm(ranks: Ranks, name: str, dtype: torch.dtype, shares: list[int]) -> None:
    expected = norm_steps(ONE, name, dtype, shares)
    found = ranks.run(norm_steps, name, dtype, shares)

    assert "2 input gradient" in expected
    assert set(found[0]) == set(expected)
    # Inputs are near 100 and float32 has 7 digits: one process has the same rounding error.
    tolerance = TOLERANCES[dtype] * (10 if dtype is torch.float32 else 1)
    for key, value in expected.items():
        torch.testing.assert_close(whole(found, key), value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", NORMS)
def test_two_processes_normalize_as_one(two_ranks: Ranks, name: str, dtype: torch.dtype) -> None:
    check_norm(two_ranks, name, dtype, [4, 4])


@pytest.mark.parametrize("shares", [[1, 6], [7, 0]])
def test_batches_of_different_sizes_on_each_process(two_ranks: Ranks, shares: list[int]) -> None:
    check_norm(two_ranks, "2d", torch.float64, shares)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1d", "with activation"])
def test_four_processes_normalize_as_one(four_ranks: Ranks, name: str) -> None:
    check_norm(four_ranks, name, torch.float64, [1, 3, 2, 5])
    check_norm(four_ranks, name, torch.float32, [2, 2, 2, 2])


def check_training(ranks: Ranks, views: str, dtype: torch.dtype) -> None:
    expected = training_steps(ONE, views, dtype, 4)
    found = ranks.run(training_steps, views, dtype, 4)

    tolerance = TOLERANCES[dtype]
    for step, single in enumerate(expected["losses"]):
        assert len(single) == 4
        mean = {k: sum(f["losses"][step][k] for f in found) / len(found) for k in single}
        assert mean == pytest.approx(single, rel=tolerance)
    changed = 0
    for key, value in expected["state"].items():
        torch.testing.assert_close(
            found[0]["state"][key], value, rtol=20 * tolerance, atol=20 * tolerance
        )
        changed += "running_mean" in key and bool(value.abs().max() > 0)
    assert changed == 3 * 14  # tsm_tiny has 14 norms


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_two_processes_train_private_norms_as_one(
    two_ranks: Ranks, views: str, dtype: torch.dtype
) -> None:
    check_training(two_ranks, views, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_four_processes_train_private_norms_as_one(four_ranks: Ranks, views: str) -> None:
    check_training(four_ranks, views, torch.float64)


def test_evaluation_frozen_and_untracked_norms(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(modes_of_a_synchronized_norm)

    assert "evaluation" in first
    assert len(second) == 4
    assert [key for key, holds in {**second, **first}.items() if not holds] == []


def test_half_precision_with_activation_checkpointing(two_ranks: Ranks) -> None:
    expected = coarse_and_checkpointed(ONE)  # torch's own norm
    found = two_ranks.run(coarse_and_checkpointed)

    for key, value in expected.items():
        got = whole(found, key)
        assert got.dtype == value.dtype == (torch.float32 if key == "gradient" else torch.bfloat16)
        torch.testing.assert_close(got, value, rtol=1e-2, atol=1e-2)


def test_one_value_per_channel_is_refused(two_ranks: Ranks) -> None:
    for message in two_ranks.run(one_value_per_channel):
        assert message.startswith("1 value per channel over all processes")


def test_one_process_changes_nothing() -> None:
    model = convert(tiny(), (2, 4))
    modules = list(model.modules())

    assert convert_sync_bn(model, ONE) is model
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))


def test_before_or_after_conversion() -> None:
    torch.manual_seed(0)
    plain = tiny()
    clip = torch.randn(2, 3, 4, 16, 16)

    torch.manual_seed(1)  # of the alterations
    before = convert(convert_sync_bn(copy.deepcopy(plain), TWO), (2, 4))
    torch.manual_seed(1)
    after = convert_sync_bn(convert(plain, (2, 4)), TWO)
    torch.manual_seed(1)
    never = convert(plain, (2, 4))

    for model in (before, after):
        assert sum(type(m) is CpuSyncBatchNorm for m in model.modules()) == 2 * 14
        assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        state, expected = model.state_dict(), never.state_dict()
        assert list(state) == list(expected)
        assert all(torch.equal(state[key], value) for key, value in expected.items())
        private = [m for m in model.modules() if isinstance(m, PrivateModules)]
        assert any(
            type(m["2"]) is CpuSyncBatchNorm and type(m["4"]) is CpuSyncBatchNorm for m in private
        )
        # Without a process group: bit-equal to torch's norm in both modes.
        for mode in (True, False):
            with torch.no_grad():
                assert torch.equal(model.train(mode)(clip), never.train(mode)(clip))
        assert torch.equal(extract(model, 2)(clip), extract(never, 2)(clip))
        model.load_state_dict(expected)
        model.load_state_dict(plain.state_dict())
        never = convert(plain, (2, 4))
        never.load_state_dict(dict(model.state_dict()))


def test_hooks_attributes_and_sharing_are_kept() -> None:
    norm = nn.BatchNorm2d(3, eps=0.1, momentum=None).eval().requires_grad_(False)
    calls: list[Any] = []
    norm.register_forward_hook(lambda *_: calls.append(None))
    shared = nn.Sequential(norm, nn.Identity(), norm)
    weight = norm.weight

    model = convert_sync_bn(shared, TWO)

    assert model is shared
    assert model[0] is model[2]
    assert isinstance(model[0], NORM_KINDS)
    assert isinstance(model[0], nn.modules.batchnorm._BatchNorm)
    assert (model[0].eps, model[0].momentum, model[0].training) == (0.1, None, False)
    assert model[0].weight is weight
    assert not weight.requires_grad
    model(torch.randn(2, 3, 4, 4))
    assert len(calls) == 2
    again = convert_sync_bn(model, TWO)[0]
    assert again is model[0]
    assert type(convert_sync_bn(nn.SyncBatchNorm(3), TWO)) is CpuSyncBatchNorm


def test_activations_of_mobile_networks_are_kept() -> None:
    torch.manual_seed(0)
    plain = backbones.build("tsm.mobilenetv3_small_050", num_classes=3).eval()
    norms = [m for m in plain.modules() if isinstance(m, BatchNormAct2d)]
    for norm in norms:
        nn.init.uniform_(norm.running_mean, -0.1, 0.1)
    clip = torch.randn(1, 3, 4, 64, 64)
    expected = plain(clip)
    keys = list(plain.state_dict())

    model = convert_sync_bn(plain, TWO)

    assert sum(type(m) is CpuSyncBatchNorm for m in model.modules()) == len(norms) > 30
    assert list(model.state_dict()) == keys
    assert torch.equal(model(clip), expected)


def test_other_norms_are_not_converted() -> None:
    model = nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm2d(3))
    before = list(model)

    assert list(convert_sync_bn(model, TWO)) == before


def test_norm_with_its_own_forward_is_refused() -> None:
    model = nn.Sequential(SplitBatchNorm2d(4, num_splits=2))

    with pytest.raises(ValueError, match="SplitBatchNorm2d is a BatchNorm with its own forward"):
        convert_sync_bn(model, TWO)


def test_cuda_uses_the_norms_of_torch_and_timm() -> None:
    """Evaluation works on a CPU too; the test with a GPU below covers training."""
    torch.manual_seed(0)
    model = convert(backbones.build("tsm.mobilenetv3_small_050", num_classes=3), (2, 4)).eval()
    clip = torch.randn(1, 3, 4, 64, 64)
    expected, state = model(clip), {k: v.clone() for k, v in model.state_dict().items()}
    kinds = {nn.BatchNorm2d: nn.SyncBatchNorm, BatchNormAct2d: SyncBatchNormAct}
    before = [type(m) for m in model.modules()]

    convert_sync_bn(model, World(0, 2, torch.device("cuda")))

    assert {*kinds} & {*before} == {BatchNormAct2d}
    assert [type(m) for m in model.modules()] == [kinds.get(kind, kind) for kind in before]
    assert torch.equal(model(clip), expected)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    on_cuda = convert_sync_bn(tiny(), World(0, 2, torch.device("cuda")))
    assert sum(type(m) is nn.SyncBatchNorm for m in on_cuda.modules()) == 14


@pytest.mark.gpu
@pytest.mark.parametrize("name", NORMS)
def test_cpu_and_cuda_norms_agree(two_ranks: Ranks, name: str) -> None:
    """With gloo, two processes can share one device."""
    shares = [3, 5]
    found = two_ranks.run(norm_steps, name, torch.float64, shares, "cuda")
    expected = two_ranks.run(norm_steps, name, torch.float64, shares)

    for rank in (0, 1):
        for key, value in expected[rank].items():
            torch.testing.assert_close(found[rank][key], value, rtol=1e-8, atol=1e-8)


def moments_by_numpy(x: torch.Tensor) -> np.ndarray:
    values = x.movedim(1, 0).flatten(1).double().numpy()
    mean = values.mean(1)
    return np.concatenate([[values.shape[1]], mean, ((values - mean[:, None]) ** 2).sum(1)])


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)]
)
@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 4)])
def test_row_of_a_tensor(shape: tuple[int, ...], dtype: torch.dtype, rtol: float) -> None:
    x = (3 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)

    found = channel_moments(x)

    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), moments_by_numpy(x), rtol=rtol)


def test_rows_of_parts_combine_to_the_row_of_all_values() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1e5 + torch.randn(12, 3, 4, dtype=torch.float64, generator=generator)
    parts = x.split([1, 0, 5, 6])

    found = combine(torch.stack([channel_moments(part) for part in parts]))

    np.testing.assert_allclose(found.numpy(), moments_by_numpy(x), rtol=1e-9)


def test_rows_without_values() -> None:
    empty = channel_moments(torch.zeros(0, 2, 3))

    assert torch.equal(combine(torch.stack([empty, empty])), torch.zeros(5, dtype=torch.float64))
