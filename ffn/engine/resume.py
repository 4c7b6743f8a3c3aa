"""What a run needs beside its weights to go on as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ffn.engine.config import ConfigError

# Options that a continued run may change: they say where and how, not what is computed.
FREE = ("log", "data.root", "data.store", "data.workers", "data.timeout", "data.reader")


def check_same_run(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuse to continue a run under options that change what it computes.

    Args:
        before: the config in the checkpoint, as nested dicts.
        now: the config given.
        path: of the checkpoint, for the message.

    Raises:
        ConfigError: an option differs that is not in `FREE`; the message names both values.
    """
    old, new = _flat(before), _flat(now)
    changed = [
        f"{key} {old.get(key)} -> {new.get(key)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not key.startswith(FREE)
    ]
    if changed:
        raise ConfigError(
            f"{path} belongs to a run with other options ({'; '.join(changed[:5])}). Choose "
            "another log.output, or continue with the options it had."
        )


def buffers(model: nn.Module) -> list[Tensor]:
    """Buffers of this process: running statistics differ between processes until averaged."""
    return [buffer.detach().cpu().clone() for buffer in model.buffers()]


def load_buffers(model: nn.Module, saved: list[Tensor]) -> None:
    """Put back what :func:`buffers` returned, in place."""
    for buffer, value in zip(model.buffers(), saved, strict=True):
        buffer.copy_(value)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that dropout draws from on this process."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Put back what :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
