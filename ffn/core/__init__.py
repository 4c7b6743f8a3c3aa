"""The Frame Flexible Network (Zhang et al., CVPR 2023, arXiv 2303.14817) for any ``nn.Module``.

Normalization layers and per-channel weight alterations are private to each trained frame count; all
other weights are shared. This package needs torch only. The losses are in ``ffn.engine``.
"""

from ffn.core.convert import NORMS, ConversionReport, convert, extract
from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules, WeightAlteration
from ffn.frame_counts import all_trained_frames, frame_ranges, nearest

__all__ = [
    "NORMS",
    "ConversionReport",
    "FrameFlexible",
    "PrivateModules",
    "WeightAlteration",
    "all_trained_frames",
    "convert",
    "extract",
    "frame_ranges",
    "nearest",
]
