"""A small network to compile, and a compiler without graphs of other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Reset graphs, counters and limits between tests."""
    config = torch._dynamo.config
    names = [name for name in ("recompile_limit", "cache_size_limit") if hasattr(config, name)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with config.patch({names[0]: getattr(config, names[0])}):
        yield
    torch._dynamo.reset()


class Small(nn.Module):
    """A network of three layers, which compiles quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, clip: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(clip)).square().mean((2, 3, 4)))
