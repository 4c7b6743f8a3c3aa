"""Plain models by name."""

from __future__ import annotations

import difflib
import re
from typing import Any

from torch import nn

from ffn import backbones

# Models whose published weights are of videos: what they start from (PAPER, recipes).
STARTS = {
    "slowfast_r50": "slowfast_r50_8x8.k400_f32",
    "slowfast_r50_4x16": "slowfast_r50_4x16.k400_f32",
    "slowfast_r50_8x8": "slowfast_r50_8x8.k400_f32",
    "slowonly_r50": "slowonly_r50.k400_f8",
    "uniformer_b": "uniformer_b.k600_f16",
    "uniformer_s": "uniformer_s.k600_f16",
}


def create_model(
    name: str, *, num_classes: int = 400, pretrained: bool = False, **kwargs: Any
) -> nn.Module:
    """Build a plain video model: clip (B, C, T, H, W) of any T to logits (B, K).

    Args:
        name: a registered model, as "tsm_r50" (see :func:`list_models`), or ``tsm.<timm name>`` for
            any timm CNN with residual blocks.
        num_classes: K, at least 1.
        pretrained: start from published weights: timm's of images, or those of Kinetics in
            `STARTS`, downloaded on first use. The classifier starts anew.
        kwargs: further arguments of the model's factory, as ``dropout=0.5``.

    Raises:
        ValueError: no model of that name, the message holds the closest ones; or an argument that
            it does not take.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; expected at least 1")
    family, _, timm_name = name.partition(".")
    if timm_name and family in backbones.families():
        _check_timm_name(name, timm_name)
    if pretrained and name in STARTS:
        from ffn.zoo.load import load_start_weights  # which builds with the function here

        model = create_model(name, num_classes=num_classes, **kwargs)
        load_start_weights(model, STARTS[name])
        return model
    try:
        return backbones.build(name, num_classes=num_classes, pretrained=pretrained, **kwargs)
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unknown is None:
            raise
        raise ValueError(f"{name} takes no {unknown[1]}; leave it out") from error


def list_models(pattern: str = "*") -> list[str]:
    """Names that :func:`create_model` takes and that match a glob pattern, sorted."""
    return backbones.model_names(pattern)


def _check_timm_name(name: str, timm_name: str) -> None:
    import timm

    if timm.is_model(timm_name):
        return
    close = difflib.get_close_matches(timm_name.split(".")[0], timm.list_models(), n=3)
    family = name.partition(".")[0]
    hint = f"did you mean {', '.join(f'{family}.{c}' for c in close)}?" if close else ""
    raise ValueError(f'no model "{name}": timm has no "{timm_name}". {hint}'.strip())
