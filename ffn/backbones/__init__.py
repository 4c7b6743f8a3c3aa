"""Plain video models, each written once, for clips of any length.

Every model maps a clip (B, C, T, H, W) to logits (B, K); none depends on a number of frames.
"""

from ffn.backbones.lipnet import LipNet
from ffn.backbones.probe import ProbeNetwork
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
from ffn.backbones.tsn import tsn_of as tsn_of
from ffn.backbones.uniformer import UniFormer
from ffn.backbones.vit import ViT

__all__ = [
    "TEA",
    "TSM",
    "LipNet",
    "ProbeNetwork",
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
