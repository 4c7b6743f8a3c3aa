"""Map the names of a MobileNetV2 in torchvision, TSM's repository and MMAction2 to timm's.

Note:
    TSM's published network for Jester (``features.*``, ``classifier.weight``) is the online form:
    it shifts from past frames only. It converts, but our shift is bidirectional; train it further.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

_BLOCKS = [(stage, b) for stage, depth in enumerate((1, 2, 3, 4, 3, 3, 1)) for b in range(depth)]
_TIMM = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")
_TIMM_FIRST = ("conv_dw", "bn1", "conv_pw", "bn2")  # the first block does not widen

# Layers of a block in the other implementations, in the order of the two above.
_TORCHVISION = ("0.0", "0.1", "1.0", "1.1", "2", "3"), ("0.0", "0.1", "1", "2")
_TSM = ("0", "1", "3", "4", "6", "7"), ("0", "1", "3", "4")
_MMACTION2 = tuple(f"{place}.{kind}" for place in range(3) for kind in ("conv", "bn"))

_ENDS = {
    "features.0.0": "conv_stem",
    "features.0.1": "bn1",
    "features.18.0": "conv_head",
    "features.18.1": "bn2",
    "conv1.conv": "conv_stem",
    "conv1.bn": "bn1",
    "conv2.conv": "conv_head",
    "conv2.bn": "bn2",
    "new_fc": "classifier",
    "classifier": "classifier",
    "classifier.1": "classifier",
    "cls_head.fc_cls": "classifier",
}


def is_mobilenetv2(keys: Iterable[str]) -> bool:
    """Whether these are the names of a MobileNetV2 of one of the three."""
    return any(re.search(r"(features\.\d+|layer\d\.\d+)\.conv\.0\.", key) for key in keys)


def mobilenetv2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries with our names; unknown names are kept.

    ============================================  =============================
    ``features.2.conv.1.0.weight`` (torchvision)  ``net.blocks.1.0.conv_dw.weight``
    ``base_model.features.3.conv.0.net.weight``   ``net.blocks.1.1.conv_pw.weight``
    ``backbone.layer2.1.conv.0.net.bn.weight``    ``net.blocks.1.1.bn1.weight``
    ============================================  =============================
    """
    in_features = _TORCHVISION if any(".conv.0.0." in key for key in state) else _TSM
    return {_ours(key, in_features): value for key, value in state.items()}


def _ours(key: str, in_features: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
    name = re.sub(r"^(base_model|backbone)\.", "", key).replace(".net.", ".")
    owner, _, leaf = name.rpartition(".")
    if owner in _ENDS:
        return f"net.{_ENDS[owner]}.{leaf}"
    if match := re.fullmatch(r"features\.(\d+)\.conv\.(.+)", owner):
        place, layers = int(match[1]) - 1, in_features
        if not 0 <= place < len(_BLOCKS):
            return key
        stage, block = _BLOCKS[place]
    elif match := re.fullmatch(r"layer(\d)\.(\d+)\.conv\.(.+)", owner):
        stage, block, layers = int(match[1]) - 1, int(match[2]), (_MMACTION2, _MMACTION2[:4])
    else:
        return key
    theirs, ours = (layers[1], _TIMM_FIRST) if stage == 0 else (layers[0], _TIMM)
    layer = dict(zip(theirs, ours, strict=True)).get(match[match.lastindex])
    return key if layer is None else f"net.blocks.{stage}.{block}.{layer}.{leaf}"
