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


def tea_name(ours: str, *, flexible: bool) -> str:
    """The name that FFN-pytorch's TEA has for an entry of ours."""
    name = ours.replace("net.fc.", "new_fc.").replace("net.", "base_model.")
    if flexible:
        name = re.sub(r"bns\.(\d)\.(\d+)\.", r"bns_\2.\1.", name)
        name = re.sub(r"downsample\.1\.(\d+)\.", r"downsample_bn_\1.", name)
        name = name.replace("downsample.0.", "downsample_conv.")
    return re.sub(r"(bn\d)\.(\d+)\.", r"\1_\2.", name) if flexible else name


def slowfast_name(ours: str, *, flexible: bool = False) -> str:
    """The name that PySlowFast, or FFN-pytorch's SlowFast, has for an entry of ours."""
    names = {"slow": "pathway0", "pathway": "pathway0", "fast": "pathway1"}
    name = ours.replace("head.", "head.projection.")
    if match := re.match(r"fusions\.(\d)\.(conv|bn)\.(.*)", ours):
        layer = "conv_f2s" if match[2] == "conv" else "bn"
        name = f"s{int(match[1]) + 1}_fuse.{layer}.{match[3]}"
    elif match := re.match(r"(\w+)\.stem\.(conv|bn)1\.(.*)", ours):
        name = f"s1.{names[match[1]]}_stem.{match[2]}.{match[3]}"
    elif match := re.match(r"(\w+)\.stages\.(\d)\.(\d+)\.(.*)", ours):
        leaf = match[4].replace("downsample.0.", "branch1.").replace("downsample.1.", "branch1_bn.")
        for letter, number in zip("abc", "123", strict=True):
            leaf = leaf.replace(f"conv{number}.", f"branch2.{letter}.")
            leaf = leaf.replace(f"bn{number}.", f"branch2.{letter}_bn.")
        leaf = leaf.replace("site.", "branch2.adaconv.")
        name = f"s{int(match[2]) + 2}.{names[match[1]]}_res{match[3]}.{leaf}"
    return re.sub(r"(bn|adaconv)\.(\d+)\.", r"\1_\2.", name) if flexible else name


def uniformer_name(ours: str, *, flexible: bool = False) -> str:
    """The name that UniFormer's own code, or FFN-pytorch's, has for an entry of ours."""
    name = re.sub(r"^embeds\.(\d)\.", lambda m: f"patch_embed{int(m[1]) + 1}.", ours)
    name = re.sub(r"^blocks\.(\d)\.", lambda m: f"blocks{int(m[1]) + 1}.", name)
    name = name.replace(".site.", ".adaconv.")
    return re.sub(r"(norm\d?|adaconv)\.(\d+)\.", r"\1_\2.", name) if flexible else name


NAMES = {
    "tsm": tsm_name,
    "tea": tea_name,
    "slowfast": slowfast_name,
    "uniformer": uniformer_name,
}


def is_flexible(network: Mapping[str, Tensor]) -> bool:
    """Whether a state dict of ours has entries per frame count."""
    return any(re.search(r"(bn\d?|norm\d?|bns\.\d)\.\d+\.", key) for key in network)


def shapes(family: str, network: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of FFN-pytorch's network, given the state dict of ours."""
    flexible = is_flexible(network)
    ones = (1, 1, 1) if family == "tsm" else (1, 1, 1, 1)
    names = {NAMES[family](k, flexible=flexible): tuple(t.shape) for k, t in network.items()}
    return {name: (*s, *ones) if "adaconv" in name else s for name, s in names.items()}


def reference(family: str, network: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """A filled state dict of FFN-pytorch's network, given the state dict of ours."""
    return {name: fill(name, shape, seed) for name, shape in shapes(family, network).items()}


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """A hash of all names and shapes."""
    lines = sorted(f"{key} {list(tensor.shape)}" for key, tensor in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, in units of the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()
