"""Checkpoints of other implementations as ours.

Sources: FFN-pytorch, the code of the paper; TSM's own repository; PySlowFast, Caffe2 files too;
UniFormer's own; MMAction2 (TSM, SlowFast); image networks of torchvision and timm.
"""

from ffn.zoo.remap.foreign import (
    SOURCES,
    Converted,
    detect_source,
    from_foreign,
    preprocessing_of,
    rename,
)
from ffn.zoo.remap.read import read_foreign
from ffn.zoo.remap.sources import (
    caffe2,
    ffn_pytorch,
    image,
    is_flexible,
    mmaction2,
    pyslowfast,
    tsm,
    uniformer,
)

__all__ = [
    "SOURCES",
    "Converted",
    "caffe2",
    "detect_source",
    "ffn_pytorch",
    "from_foreign",
    "image",
    "is_flexible",
    "mmaction2",
    "preprocessing_of",
    "pyslowfast",
    "read_foreign",
    "rename",
    "tsm",
    "uniformer",
]
