"""What ends a command with a message in place of a traceback."""

from __future__ import annotations


def failures() -> tuple[type[Exception], ...]:
    """Errors of training and testing that say themselves what to do."""
    from ffn.data import LoaderError, VideoError
    from ffn.engine.distributed import LostProcessError
    from ffn.engine.memory import OutOfMemory
    from ffn.zoo import WeightsError

    return (
        ValueError,
        OSError,
        FloatingPointError,
        ImportError,  # of an extra that is not installed
        LoaderError,
        LostProcessError,
        OutOfMemory,
        VideoError,
        WeightsError,
    )
