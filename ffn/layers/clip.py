"""Check a clip's shape, and pass its number of frames to the layers of 2-D networks."""

from __future__ import annotations

import threading

from torch import Tensor


def check_clip(clip: Tensor, channels: int | None = None) -> None:
    """Check that a tensor is a batch of clips (B, C, T, H, W).

    Args:
        clip: the tensor.
        channels: C that the network takes, if known. A clip with another C is refused only if its
            T has this size, because the two are swapped; the first layer checks C itself.

    Raises:
        ValueError: it does not have five dimensions, T is 0, or C and T are swapped.
    """
    if clip.ndim != 5 or clip.shape[2] < 1:
        raise ValueError(
            f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W), T >= 1. "
            "One clip? Add a batch dimension with clip[None]."
        )
    if channels and clip.shape[1] not in (3, channels) and clip.shape[2] == channels:
        raise ValueError(
            f"clip has {clip.shape[1]} channels and {channels} frames {tuple(clip.shape)}; "
            f"expected (B, C, T, H, W) with C = {channels}. It looks like (B, T, C, H, W), with T "
            "and C swapped; pass clip.transpose(1, 2)."
        )


class ClipLength(threading.local):
    """The number of frames T of the clip that a thread runs through a network.

    A 2-D network processes B * T images, without T. The model that flattens the clip sets
    T here for its layers. Each thread has its own value, so threads may run clips of other lengths.
    """

    frames: int | None = None

    def __deepcopy__(self, memo: dict) -> ClipLength:
        # A copied layer must read the value that its model sets. A copied model may share it too:
        # every forward sets it before reading it, and each thread has its own value.
        return self

    def __reduce__(self) -> tuple[type[ClipLength], tuple[()]]:
        return ClipLength, ()  # a pickle has no value; within one, all layers share a new object
