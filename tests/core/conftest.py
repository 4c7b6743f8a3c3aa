from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `core_models`
torch.set_num_threads(1)  # the tensors are tiny
