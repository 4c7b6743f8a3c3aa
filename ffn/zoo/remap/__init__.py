"""Convert checkpoints of other implementations.

Sources: FFN-pytorch, the code of the paper; TSM's repository; PySlowFast, also its Caffe2 files;
UniFormer's repository; the repositories of VideoMAE; transformers (VideoMAE, V-JEPA 2); MMAction2
(TSM, SlowFast); image networks of torchvision and timm.
"""

from ffn.zoo.remap import vit
from ffn.zoo.remap.files import read_foreign
from ffn.zoo.remap.foreign import (
    SOURCES,
    detect_source,
    from_foreign,
    preprocessing_of,
    rename,
)
