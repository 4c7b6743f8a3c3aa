"""Small torch modules that backbones share; none depends on a number of frames.

The letters in shape comments, everywhere in ffn::

    B  clips in a batch        T  frames of a clip       C  channels
    H  height, W  width        K  classes                N  B * T, frames of all clips, clip-major
"""

from ffn.clips import check_clip
from ffn.layers.alteration_site import AlterationSite
from ffn.layers.classifier import PooledClassifier, init_classifier, resample
from ffn.layers.per_frame import HEAD_STD, PerFrame
from ffn.layers.streaming import Average, ClipLength, Past
from ffn.layers.temporal_shift import ShiftConv2d, temporal_shift

__all__ = [
    "HEAD_STD",
    "AlterationSite",
    "Average",
    "ClipLength",
    "Past",
    "PerFrame",
    "PooledClassifier",
    "ShiftConv2d",
    "check_clip",
    "init_classifier",
    "resample",
    "temporal_shift",
]
