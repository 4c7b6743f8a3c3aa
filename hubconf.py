"""Entry points for torch.hub: every model by its name, and trained networks by theirs.

``torch.hub.load("OWNER/REPO", "tsm_r50", num_classes=174)`` returns
``ffn.create_model("tsm_r50", num_classes=174)``. torch.hub puts the repository on Python's path, so
ffn need not be installed; the packages in `dependencies` must be.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from typing import Any as _Any

import ffn as _ffn

dependencies = [
    "av",
    "decord",
    "einops",
    "filelock",
    "fsspec",
    "huggingface_hub",
    "numpy",
    "PIL",
    "pooch",
    "pydantic",
    "requests",
    "rich",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
    "yaml",
]


def create_model(name: str, **options: _Any) -> _Any:
    """A plain video model by name, also ``tsm.<timm name>`` and ``tea.<timm name>``.

    Args:
        name: e.g. "tsm_r50" or "tsm.mobilenetv3_large_100".
        options: as of ffn.create_model: num_classes, pretrained and those of the model.
    """
    return _ffn.create_model(name, **options)


def weights(name: str, **options: _Any) -> _Any:
    """A trained network by the name of its weights, in eval mode.

    Args:
        name: e.g. "tsm_tiny.motion_f4_8_16", a file, or "hf://user/name".
        options: as of ffn.load: device.
    """
    return _ffn.load(name, **options)


def predictor(name: str, **options: _Any) -> _Any:
    """A trained network with its preprocessing and class names: video file to labels.

    Args:
        name: of the weights, e.g. "tsm_tiny.motion_f4_8_16".
        options: as of ffn.Predictor: device, precision, …
    """
    return _ffn.Predictor(name, **options)


def __dir__() -> list[str]:
    own = ["create_model", "dependencies", "predictor", "weights"]
    return sorted([*own, *_ffn.list_models()])


def __getattr__(name: str) -> _Callable[..., _Any]:
    """The entry point of a registered model."""
    if name.startswith("_") or name not in _ffn.list_models():
        raise AttributeError(f"hubconf has no entry point {name!r}")

    def entry(**options: _Any) -> _Any:
        return _ffn.create_model(name, **options)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = _model_help(name)
    return entry


def _model_help(name: str) -> str:
    from ffn.backbones.registry import model_summary

    return f"""{model_summary(name)}

    A plain model: clip (B, C, T, H, W) of any T to logits (B, K). ffn.convert makes it
    frame-flexible; the entry points weights and predictor load trained networks.

    Args:
        num_classes: K; default: 400.
        pretrained: True starts from published weights; a name or path from these weights.
        options: as of ffn.create_model: those of the model, such as dropout.
    """
