"""TSN: an image network for each frame, whose logits are averaged (Wang et al., ECCV 2016)."""

from __future__ import annotations

from typing import Any

import timm

from ffn.backbones.registry import register_family
from ffn.layers import HEAD_STD, PerFrame, init_classifier


@register_family("tsn")
def tsn_of(
    timm_name: str,
    *,
    num_classes: int = 400,
    pretrained: bool = False,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    **kwargs: Any,
) -> PerFrame:
    """Any image network of timm, frame by frame; positions of transformers are interpolated.

    Args:
        timm_name: as in ``timm.list_models()``; a ``.tag`` chooses among pretrained weights.
        num_classes: K.
        pretrained: start from timm's weights; the classifier is new.
        dropout: probability before the classifier.
        drop_path: stochastic depth rate of the last block.
        kwargs: further arguments of ``timm.create_model``.
    """
    if drop_path:
        kwargs["drop_path_rate"] = drop_path
    kwargs |= {"pretrained": pretrained, "num_classes": num_classes, "drop_rate": dropout}
    try:  # a transformer for frames of any size
        net = timm.create_model(timm_name, dynamic_img_size=True, **kwargs)
    except TypeError:
        net = timm.create_model(timm_name, **kwargs)
    init_classifier(net.get_classifier(), HEAD_STD)
    return PerFrame(net, causal=True)
