"""The hash of a state dict."""

from __future__ import annotations

import hashlib

import torch

from ffn.zoo import state_sha256


def test_the_hash_is_that_of_names_types_shapes_and_values() -> None:
    state = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(3)}
    text = b"a torch.int64 ()\n" + (3).to_bytes(8, "little")
    text += b"b torch.float32 (1, 2)\n" + bytes.fromhex("0000803f00000040")

    assert state_sha256(state) == hashlib.sha256(text).hexdigest()


def test_anything_but_the_order_changes_the_hash() -> None:
    state = {"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    own = state_sha256(state)
    assert state_sha256(dict(reversed(state.items()))) == own
    transposed = torch.arange(6.0).view(2, 3).T
    assert state_sha256({"a": transposed}) == state_sha256({"a": transposed.contiguous()})

    for changed in (
        {"a": state["a"], "c": state["b"]},
        {**state, "a": state["a"].view(2, 3)},
        {**state, "a": state["a"] + 1e-6},
        {**state, "b": state["b"].half()},
        {"a": state["a"]},
    ):
        assert state_sha256(changed) != own
