"""Convert checkpoints of other implementations.

Sources: FFN-pytorch, the code of the paper; TSM's repository; PySlowFast, also its Caffe2 files;
UniFormer's repository; MMAction2 (TSM, SlowFast); image networks of torchvision and timm.
"""

from ffn.zoo.remap.files import read_foreign
from ffn.zoo.remap.foreign import (
    SOURCES,
    Converted,
    detect_source,
    from_foreign,
    preprocessing_of,
    rename,
)
from ffn.zoo.remap.names import (
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
