"""Deterministic weights and clips: two implementations can be compared without sharing files.

A stream of numbers belongs to a text: Philox4x64-10, counter 0, keyed by the first 16 bytes of the
text's sha256 (little-endian); a 64-bit word w gives u = (w >> 11) / 2**53. A tensor's text is
"<seed>:<name in the reference implementation>", so a tensor under a wrong name gets wrong numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor


def uniform(text: str, shape: Iterable[int], low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """float64 numbers in [low, high), in row-major order."""
    shape = tuple(shape)
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(math.prod(shape))
    numbers = (words >> np.uint64(11)).astype(np.float64) / 2.0**53
    return low + (high - low) * numbers.reshape(shape)


def normal(text: str, shape: Iterable[int]) -> np.ndarray:
    """float64 standard normal numbers by Box and Muller: first all radii, then all angles."""
    shape = tuple(shape)
    radius, angle = uniform(text, (2, math.prod(shape)))
    numbers = np.sqrt(-2 * np.log(1 - radius)) * np.cos(2 * np.pi * angle)
    return numbers.reshape(shape)


def fill(name: str, shape: Iterable[int], seed: int = 0) -> Tensor:
    """float32 values of the reference tensor `name`."""
    shape, text = tuple(shape), f"{seed}:{name}"
    owner, _, leaf = name.rpartition(".")
    is_norm = re.search("bn|norm", owner) or owner.endswith("downsample.1")
    if leaf == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    if leaf == "running_var" or (is_norm and leaf == "weight"):
        values = uniform(text, shape, 0.5, 1.5)
    elif leaf == "running_mean" or is_norm:
        values = 0.1 * normal(text, shape)
    elif "adaconv" in name:
        values = 0.05 * normal(text, shape)
    elif leaf == "bias":
        values = 0.02 * normal(text, shape)
    else:
        values = normal(text, shape) / math.sqrt(math.prod(shape[1:]))
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


def clip(seed: int, shape: tuple[int, int, int, int, int]) -> Tensor:
    """float32 clips (B, C, T, H, W), with parts shared by a clip, a frame, a 16 x 16 block."""
    b, c, t, h, w = shape
    blocks = normal(f"{seed}:input.block", (b, c, t, math.ceil(h / 16), math.ceil(w / 16)))
    values = (
        normal(f"{seed}:input.clip", (b, c, 1, 1, 1))
        + normal(f"{seed}:input.frame", (b, c, t, 1, 1))
        + np.kron(blocks, np.ones((16, 16)))[..., :h, :w]
        + normal(f"{seed}:input.pixel", shape)
    )
    return torch.from_numpy((values / 2).astype(np.float32))


def tsm_name(ours: str, *, flexible: bool) -> str:
    """The name that FFN-pytorch's TSM, flexible or plain, has for an entry of ours."""
    name = ours.replace("net.fc.", "new_fc.").replace("net.", "base_model.")
    name = re.sub(r"conv1\.site\.(\d+)\.", r"adaconv_\1.", name)
    name = re.sub(r"downsample\.1\.(\d+)\.", r"downsample_bn_\1.", name)
    if flexible:
        name = name.replace("downsample.0.", "downsample_conv.")
    return re.sub(r"(bn\d)\.(\d+)\.", r"\1_\2.", name)


def tsm_shapes(network: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of FFN-pytorch's TSM, given the state dict of ours."""
    flexible = any("site" in key for key in network)
    names = {tsm_name(key, flexible=flexible): tuple(t.shape) for key, t in network.items()}
    return {name: (*s, 1, 1, 1) if "adaconv" in name else s for name, s in names.items()}


def tsm_reference(network: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """A filled state dict of FFN-pytorch's TSM, given the state dict of ours."""
    return {name: fill(name, shape, seed) for name, shape in tsm_shapes(network).items()}


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """A hash of all names and shapes."""
    lines = sorted(f"{key} {list(tensor.shape)}" for key, tensor in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()
