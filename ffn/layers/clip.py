"""What every model asks of a clip, and its number of frames for the layers of 2-D networks."""

from __future__ import annotations

import threading

from torch import Tensor


def check_clip(clip: Tensor) -> None:
    """Refuse what is not a batch of clips.

    Raises:
        ValueError: the clip has not five dimensions (B, C, T, H, W), or no frame.
    """
    if clip.ndim != 5 or clip.shape[2] < 1:
        raise ValueError(
            f"clip has {clip.ndim} dims {tuple(clip.shape)}; expected (B, C, T, H, W), T >= 1. "
            "One clip? Add a batch dimension with clip[None]."
        )


class ClipLength(threading.local):
    """The number of frames of the clip that a thread is running through a network.

    A 2-D network sees B * T images and no T; the model that flattened the clip writes T here for
    the layers inside. One value per thread: a model may serve clips of several lengths at once.
    """

    frames: int | None = None

    def __deepcopy__(self, memo: dict) -> ClipLength:
        # A copied layer must keep reading what its model writes. A copied model may share it too:
        # every forward writes before it reads, and no other thread sees the value.
        return self
