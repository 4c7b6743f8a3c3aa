"""Modules of which every trained frame count owns a copy (PAPER §3.3, multi-frequency adaptation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn


class PrivateModules(nn.ModuleDict):
    """One module per trained frame count; a call goes to the copy of the ``active`` count.

    State-dict keys carry the count: ``bn1.16.weight``.

    Args:
        modules: the modules by frame count. The largest count is active at first.
    """

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        super().__init__({str(count): module for count, module in sorted(modules.items())})
        self.active = max(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the active count's module."""
        return self[str(self.active)](*args, **kwargs)

    def extra_repr(self) -> str:
        """The active count, for ``print(model)``."""
        return f"active={self.active}"
