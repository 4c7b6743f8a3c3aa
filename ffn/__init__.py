"""ffn: frame-flexible video recognition. One network, trained once, for any number of frames.

The names that most programs need. Those that need more than torch are imported on first use, so
``import ffn`` loads no decoder, data set or logger.
"""

from __future__ import annotations

import importlib
from typing import Any

from ffn.core import FrameFlexible, convert, extract, nearest

# Not lazy: a later import of the package ffn.export would replace the function of that name.
from ffn.export import export, fuse
from ffn.version import __version__

_LAZY = {
    "Predictor": "ffn.serve",
    "create_model": "ffn.zoo",
    "freeze": "ffn.engine.freezing",
    "from_pretrained": "ffn.zoo",
    "list_models": "ffn.zoo",
    "list_weights": "ffn.zoo",
    "load": "ffn.zoo",
    "push_to_hub": "ffn.zoo",
    "summary": "ffn.evaluation",
    "tune_allocator": "ffn.host_memory",
    "unfreeze": "ffn.engine.freezing",
}

__all__ = [
    "FrameFlexible",
    "Predictor",
    "__version__",
    "convert",
    "create_model",
    "export",
    "extract",
    "freeze",
    "from_pretrained",
    "fuse",
    "list_models",
    "list_weights",
    "load",
    "nearest",
    "push_to_hub",
    "summary",
    "tune_allocator",
    "unfreeze",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ffn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
