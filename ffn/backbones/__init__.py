"""Plain video models, each written once, for clips of any length.

Everything here takes a clip (B, C, T, H, W) and returns logits (B, K); none knows a frame count.
"""

from ffn.backbones.registry import (
    build,
    families,
    model_names,
    register,
    register_family,
    register_pretrained,
)
from ffn.backbones.slowfast import SlowFast
from ffn.backbones.tea import TEA
from ffn.backbones.tsm import TSM
from ffn.backbones.uniformer import UniFormer

__all__ = [
    "TEA",
    "TSM",
    "SlowFast",
    "UniFormer",
    "build",
    "families",
    "model_names",
    "register",
    "register_family",
    "register_pretrained",
]
