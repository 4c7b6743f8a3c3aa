"""The Frame Flexible Network (Zhang et al., CVPR 2023, arXiv 2303.14817) for any ``nn.Module``.

One set of shared weights, trained at several frame counts; only normalisation layers and a
per-channel weight alteration are private to a count. Needs torch alone. Left out: training (the
losses over several views of a video), which is a task of ``ffn.engine``.
"""

from ffn.core.alteration import WeightAlteration
from ffn.core.convert import ConversionReport, convert, extract
from ffn.core.flexible import FrameFlexible
from ffn.core.private import PrivateModules
from ffn.core.selection import check_trained_frames, nearest

__all__ = [
    "ConversionReport",
    "FrameFlexible",
    "PrivateModules",
    "WeightAlteration",
    "check_trained_frames",
    "convert",
    "extract",
    "nearest",
]
