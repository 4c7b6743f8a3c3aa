"""ffn: frame-flexible video recognition. One network, trained once, for any number of frames.

The names that most programs need, and the packages, as ``ffn.layers``. Each is imported on first
use, so ``import ffn`` loads neither torch nor a decoder, data set or logger.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from ffn.version import __version__

# Where each name comes from. ``ffn.export`` is the package of that name, which can be called.
_HOMES = {
    "FrameFlexible": "ffn.core",
    "Predictor": "ffn.serve",
    "convert": "ffn.core",
    "create_model": "ffn.zoo",
    "extract": "ffn.core",
    "freeze": "ffn.engine.freezing",
    "fuse": "ffn.export",
    "list_models": "ffn.zoo",
    "list_weights": "ffn.zoo",
    "load": "ffn.zoo",
    "nearest": "ffn.core",
    "push_to_hub": "ffn.zoo",
    "stream": "ffn.export",
    "summary": "ffn.evaluation",
    "unfreeze": "ffn.engine.freezing",
}

__all__ = ["__version__", "export", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_") and importlib.util.find_spec(f"ffn.{name}"):
        return importlib.import_module(f"ffn.{name}")
    raise AttributeError(f"module 'ffn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
