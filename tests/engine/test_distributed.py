"""Collectives over parameters: averages in buckets, broadcasts, and the check of replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from engine_toys import flexible_task
from rank_cases import ONE
from ranks import Ranks
from torch import Tensor, nn

from ffn.engine import distributed
from ffn.engine.distributed import (
    ReplicaError,
    World,
    average_gradients,
    broadcast_parameters,
    check_replicas,
    fingerprint,
)

SIZES = (3, 1000, 5, 400, 400, 2500, 1)  # elements of float32 parameters
LIMIT = 4 * 1000  # bytes of a bucket


def parameters_of_rank(world: World) -> list[nn.Parameter]:
    """Parameters with different gradients on each rank, one without."""
    generator = torch.Generator().manual_seed(world.rank)
    parameters = [nn.Parameter(torch.zeros(size)) for size in (*SIZES, 7)]
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def averaged_in_buckets(world: World) -> tuple[list[Tensor], Tensor, list[int]]:
    """Return averaged gradients, the average of the concatenation, and the sizes of buckets."""
    parameters = parameters_of_rank(world)
    whole = torch.cat([p.grad for p in parameters[:-1]])
    dist.all_reduce(whole)
    whole /= world.size

    sizes, all_reduce = [], dist.all_reduce

    def counting(tensor: Tensor, *args: Any) -> Any:
        sizes.append(tensor.numel())
        return all_reduce(tensor, *args)

    limit = distributed.BUCKET_BYTES
    distributed.BUCKET_BYTES, dist.all_reduce = LIMIT, counting
    try:
        average_gradients(parameters, world)
    finally:
        distributed.BUCKET_BYTES, dist.all_reduce = limit, all_reduce
    assert parameters[-1].grad is None
    return [p.grad for p in parameters[:-1]], whole, sizes


def test_gradients_are_averaged_in_buckets(two_ranks: Ranks) -> None:
    generators = [torch.Generator().manual_seed(rank) for rank in (0, 1)]
    expected = [
        sum(torch.randn(size, generator=generator) for generator in generators) / 2
        for size in SIZES
    ]

    for gradients, whole, sizes in two_ranks.run(averaged_in_buckets):
        # 1000 elements fit; a larger tensor is a bucket of its own.
        assert sizes == [3, 1000, 5 + 400 + 400, 2500, 1]
        assert torch.equal(torch.cat(gradients), whole)
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def broadcast(world: World) -> tuple[dict[str, Tensor], bool]:
    model = flexible_task((2, 4)).model
    own = {name: b.clone() for name, b in model.named_buffers()}
    for parameter in model.parameters():
        parameter.data += world.rank
    limit, distributed.BUCKET_BYTES = distributed.BUCKET_BYTES, LIMIT
    try:
        broadcast_parameters(model, world)
    finally:
        distributed.BUCKET_BYTES = limit
    check_replicas(model, world)
    kept = all(torch.equal(b, own[name]) for name, b in model.named_buffers())
    return dict(model.named_parameters()), kept


def test_parameters_of_rank_0_are_broadcast(two_ranks: Ranks) -> None:
    expected = dict(flexible_task((2, 4)).model.named_parameters())

    for parameters, kept in two_ranks.run(broadcast):
        assert kept
        assert all(torch.equal(parameters[name], value) for name, value in expected.items())


def check_with_change(world: World, name: str | None, rank: int) -> str:
    """Flip the lowest bit of one element on one rank; return the error of the check."""
    model = flexible_task((2, 4)).model
    if name is not None and world.rank == rank:
        with torch.no_grad():
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            bits = tensors[name].detach().view(-1).view(torch.int32)
            bits[len(bits) // 2] ^= 1
    try:
        check_replicas(model, world)
    except ReplicaError as error:
        return str(error)
    return ""


def test_equal_replicas_pass(two_ranks: Ranks) -> None:
    assert two_ranks.run(check_with_change, None, 0) == ["", ""]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_changed_bit_is_found_and_named(two_ranks: Ranks, rank: int) -> None:
    name = "model.net.layer3.0.conv1.weight"
    for message in two_ranks.run(check_with_change, name, rank):
        assert message.startswith("1 of 80 tensors differ between processes")
        assert f"first {name}: rank(s) 1 from rank 0; " in message


def test_running_statistics_may_differ(two_ranks: Ranks) -> None:
    name = "model.net.layer1.0.bn1.4.running_var"
    assert two_ranks.run(check_with_change, name, 1) == ["", ""]


@pytest.mark.slow
def test_the_ranks_that_differ_are_named(four_ranks: Ranks) -> None:
    for message in four_ranks.run(check_with_change, "model.net.layer1.0.bn1.4.weight", 2):
        assert "first model.net.layer1.0.bn1.4.weight: rank(s) 2 from rank 0" in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_fingerprint_is_a_sum_modulo_2_to_64(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "CHUNK", 4)
    values = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    integers = distributed.INTEGERS[values.element_size()]
    bits = values.view(integers).flatten().tolist()
    expected = 0
    for start in (0, 4, 8):
        part = bits[start : start + 4]
        expected = 31 * expected + sum((2 * i + 1) * bit for i, bit in enumerate(part))
    expected = (expected + 2**63) % 2**64 - 2**63

    assert fingerprint(values).item() == expected
    assert fingerprint(values.t().contiguous().t()).item() == expected  # layout does not matter


@pytest.mark.parametrize("values", [torch.tensor(3), torch.tensor([True, False]), torch.zeros(0)])
def test_fingerprint_of_other_tensors(values: Tensor) -> None:
    assert fingerprint(values).dtype == torch.int64


def test_one_process_needs_no_collective() -> None:
    model = flexible_task((2, 4)).model
    check_replicas(model, ONE)
    broadcast_parameters(model, ONE)
    average_gradients(model.parameters(), ONE)
