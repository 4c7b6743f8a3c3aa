"""ffn: frame-flexible video recognition. One network, trained once, for any number of frames.

Everything a user calls stands here; it is imported when it is first used, so that ``import ffn``
costs what torch costs and never loads a decoder, a data set or a logger.
"""

from __future__ import annotations

import importlib
from typing import Any

from ffn.core import FrameFlexible, convert, extract, nearest

__version__ = "0.2.0"

_LAZY = {
    "Predictor": "ffn.serve",
    "create_model": "ffn.zoo",
    "list_models": "ffn.zoo",
    "list_weights": "ffn.zoo",
    "load": "ffn.zoo",
}

__all__ = [
    "FrameFlexible",
    "Predictor",
    "convert",
    "create_model",
    "extract",
    "list_models",
    "list_weights",
    "load",
    "nearest",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ffn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
