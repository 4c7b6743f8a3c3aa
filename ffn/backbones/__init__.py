"""Plain video models, each written once, for clips of any length.

Everything here takes a clip (B, C, T, H, W) and returns logits (B, K); none knows a frame count.
"""

from ffn.backbones.registry import build, families, model_names, register, register_family
from ffn.backbones.tsm import TSM

__all__ = ["TSM", "build", "families", "model_names", "register", "register_family"]
