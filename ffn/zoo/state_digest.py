"""A hash of the tensors of a network, whatever file they are in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of a state dict; 64 hex digits.

    The order of the entries and the device do not change it, so a checkpoint and the file that
    is published from it have the same hash.

    Args:
        state: of a network, ``model.state_dict()``.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
