"""Plain video models, each written once, for clips of any length.

Every model maps a clip (B, C, T, H, W) to logits (B, K); none depends on a number of frames.
"""

from ffn.backbones.lipnet import LipNet
from ffn.backbones.registry import (
    build,
    is_registered,
    model_names,
    register,
    register_family,
    register_head,
)
from ffn.backbones.sequence import SequenceNetwork
from ffn.backbones.slowfast import SlowFast
from ffn.backbones.tea import TEA
from ffn.backbones.tsm import TSM
from ffn.backbones.uniformer import UniFormer
from ffn.backbones.vit import ViT

__all__ = [
    "TEA",
    "TSM",
    "LipNet",
    "SequenceNetwork",
    "SlowFast",
    "UniFormer",
    "ViT",
    "build",
    "is_registered",
    "model_names",
    "register",
    "register_family",
    "register_head",
]
