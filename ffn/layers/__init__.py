"""Small torch modules that backbones share; none depends on a number of frames.

The letters in shape comments, everywhere in ffn:

    B  clips in a batch        T  frames of a clip       C  channels
    H  height, W  width        K  classes                N  B * T, frames of all clips, clip-major
"""

from ffn.layers.alteration_site import AlterationSite
from ffn.layers.clip import ClipLength, check_clip
from ffn.layers.per_frame import PerFrame, TimedPerFrame
from ffn.layers.temporal_shift import ShiftConv2d, temporal_shift

__all__ = [
    "AlterationSite",
    "ClipLength",
    "PerFrame",
    "ShiftConv2d",
    "TimedPerFrame",
    "check_clip",
    "temporal_shift",
]
