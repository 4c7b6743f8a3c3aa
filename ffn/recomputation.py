"""Activation checkpointing: restore a forward pass's state before the backward repeats its parts.

A network that depends on state besides its input, as the active count, may run other clips before
the backward runs its checkpointed parts again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, compiler
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves


def run_restorably(
    function: Callable[[Tensor], Any], x: Tensor, restore: Callable[[], None]
) -> Any:
    """Return ``function(x)``; the backward calls ``restore`` before it runs a part of it again.

    The inputs of checkpointed parts are saved tensors, of which this keeps track, whatever the
    network returns, or stores elsewhere. A part may have no tensor among its positional arguments:
    ``restore`` is also called before the backward enters a returned tensor.

    Args:
        function: a network.
        x: its input.
        restore: sets the state again, in the thread of the backward. It must not refer to the
            network: torch never frees a graph that refers to itself.
    """
    if not torch.is_grad_enabled() or compiler.is_compiling():
        return function(x)
    with _restored_before_use(restore):
        outputs = function(x)
    for y in tree_leaves(outputs):
        if isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(lambda _: restore())
    return outputs


def _restored_before_use(restore: Callable[[], None]) -> AbstractContextManager[object]:
    """Call ``restore`` before a tensor that this context saves is used."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # as in torch.func
        return nullcontext()
    # Such as those of save_on_cpu; torch 2.6 cannot tell them, and they are left out there.
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    outer = top(False)

    def pack(x: Tensor) -> tuple[Any, int]:
        # An output of a node that refers to its node is never freed without a backward.
        return outer[0](x) if outer else x.detach(), x._version

    def unpack(saved: tuple[Any, int]) -> Tensor:
        restore()
        x, version = saved
        if outer:
            return outer[1](x)
        if x._version != version:  # torch checks it where there are no hooks
            raise RuntimeError(
                f"a tensor {tuple(x.shape)} that is needed for the gradient has been modified by "
                "an in-place operation; use the operation that returns a new tensor"
            )
        return x

    return saved_tensors_hooks(pack, unpack)
