"""Create plain models by name, with or without pretrained weights."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from ffn import backbones
from ffn.zoo.download import is_offline
from ffn.zoo.load import load_start_weights
from ffn.zoo.records import WeightsError

# What pretrained=True starts from, for models whose published weights are of videos.
STARTS = {
    "slowfast_r50": "slowfast_r50_8x8.k400_f32",
    "slowfast_r50_4x16": "slowfast_r50_4x16.k400_f32",
    "slowfast_r50_8x8": "slowfast_r50_8x8.k400_f32",
    "slowonly_r50": "slowonly_r50.k400_f8",
    "uniformer_b": "uniformer_b.k600_f16",
    "uniformer_s": "uniformer_s.k600_f16",
    "vit_b": "vit_b.k400_f16",
}


def create_model(
    name: str,
    *,
    num_classes: int = 400,
    pretrained: bool | str | os.PathLike[str] = False,
    **kwargs: Any,
) -> nn.Module:
    """Build a plain video model: clip (B, C, T, H, W) of any T to logits (B, K).

    Args:
        name: a registered model, e.g. "tsm_r50" (see :func:`list_models`), or
            ``tsm.<timm name>`` for any timm CNN with residual blocks.
        num_classes: K, at least 1.
        pretrained: True starts from published weights, downloaded on first use: timm's of images,
            or those of videos in `STARTS`. A name of the zoo or a path starts from these weights,
            see :func:`load_start_weights`. A classifier of other classes is new.
        kwargs: further arguments of the model's factory, e.g. ``dropout=0.5``.

    Raises:
        ValueError: no model or weights of that name (the message lists the closest names), or an
            argument that the model does not take.
        FileNotFoundError: no file at the path ``pretrained``.
        WeightsError: the weights do not fit the model, or cannot be read.
    """
    start = STARTS.get(name, True) if pretrained is True else pretrained
    if start is True:
        return _build_from_images(name, num_classes=num_classes, **kwargs)
    model = backbones.build(name, num_classes=num_classes, **kwargs)
    if start:
        load_start_weights(model, start)
    return model


def _build_from_images(name: str, **kwargs: Any) -> nn.Module:
    """Build a model with timm's weights of images."""
    import huggingface_hub

    if is_offline():  # timm asks the Hub
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        return backbones.build(name, pretrained=True, **kwargs)
    except OSError as error:  # of huggingface_hub and urllib
        cause = error.__cause__ or error
        url = getattr(getattr(cause, "request", None), "url", "timm's weights")
        raise WeightsError(
            f"{name}: the start weights cannot be downloaded ({url}: {cause}). Start from a local "
            "file with pretrained=FILE, in a config model.weights=FILE, or with pretrained=False"
        ) from error


def list_models(pattern: str = "*") -> list[str]:
    """Names that :func:`create_model` takes and that match a glob pattern, sorted."""
    return backbones.model_names(pattern)
