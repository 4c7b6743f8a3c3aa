"""Pass the number of frames of a clip to the layers of 2-D networks."""

from __future__ import annotations

import threading


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
