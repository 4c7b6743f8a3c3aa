"""One thread per process: tests are small, and several threads on busy cores are slower."""

import torch

torch.set_num_threads(1)
