"""Moments in parts, against numpy on all values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ffn.engine.moments import channel_moments, combine


def by_hand(x: torch.Tensor) -> np.ndarray:
    values = x.movedim(1, 0).flatten(1).double().numpy()
    mean = values.mean(1)
    return np.concatenate([[values.shape[1]], mean, ((values - mean[:, None]) ** 2).sum(1)])


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)]
)
@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 4)])
def test_moments_of_a_tensor(shape: tuple[int, ...], dtype: torch.dtype, rtol: float) -> None:
    x = (3 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)

    found = channel_moments(x)

    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), by_hand(x), rtol=rtol)


def test_parts_of_any_size_make_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1e5 + torch.randn(12, 3, 4, dtype=torch.float64, generator=generator)
    parts = x.split([1, 0, 5, 6])

    found = combine(torch.stack([channel_moments(part) for part in parts]))

    np.testing.assert_allclose(found.numpy(), by_hand(x), rtol=1e-9)


def test_no_values_at_all() -> None:
    empty = channel_moments(torch.zeros(0, 2, 3))

    assert torch.equal(combine(torch.stack([empty, empty])), torch.zeros(5, dtype=torch.float64))
