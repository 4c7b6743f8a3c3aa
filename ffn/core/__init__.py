"""The Frame Flexible Network (Zhang et al., CVPR 2023, arXiv 2303.14817) for any ``nn.Module``.

Shared weights trained at several frame counts; normalisation layers and a per-channel weight
alteration are private to a count. Needs torch alone. Left out: the losses, in ``ffn.engine``.
"""

from ffn.core.convert import NORMS, ConversionReport, convert, extract
from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules, WeightAlteration
from ffn.core.selection import check_trained_frames, nearest

__all__ = [
    "NORMS",
    "ConversionReport",
    "FrameFlexible",
    "PrivateModules",
    "WeightAlteration",
    "check_trained_frames",
    "convert",
    "extract",
    "nearest",
]
