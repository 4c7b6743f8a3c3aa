"""Read state dicts from files of other implementations, without executing pickled code."""

from __future__ import annotations

import argparse
import io
import logging
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import load_tensors, refuse_web_page

_log = logging.getLogger(__name__)

# Where checkpoints keep the state dict of a network; the last ones are moving averages.
_WRAPPERS = ("state_dict", "model_state_dict", "model_state", "model", "module", "net", "weights")
_WRAPPERS += ("state_dict_ema", "ema_state_dict", "model_ema", "ema")
# Prefixes of torch.compile, FSDP and activation checkpointing, at any depth, and those of DDP,
# Lightning and other owners of the whole network.
_INNER = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OUTER = ("module.", "model.", "net.", "network.", "_forward_module.")
# What pickled arrays request: numpy's constructors of arrays and scalars, in any version.
_ARRAY, _SCALAR = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
_PARTS = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
}
_PLAIN = [  # of metrics and options that are stored with the tensors
    argparse.Namespace,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    _SCALAR,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")),
]


def read_foreign(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a ``.pth``, ``.pth.tar``, ``.pyth`` or Caffe2 ``.pkl`` file.

    It is the value of ``state_dict``, ``model_state``, ``model``, …, or the file's whole content; a
    moving average is taken if there are no other weights. The prefixes of DDP, torch.compile,
    Lightning and averaged copies are removed.

    Raises:
        FileNotFoundError: no such file.
        WeightsError: the file is damaged, needs full unpickling, or holds no state dict.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix == ".pkl":
        return _read_caffe2(path)
    if path.suffix == ".safetensors":
        remedy = "save its tensors with torch.save(safetensors.torch.load_file(IN), 'in.pth')"
        raise WeightsError(f"{path}: expected a torch file or a Caffe2 .pkl; {remedy}")
    with torch.serialization.safe_globals(_PLAIN):
        content = load_tensors(path)
    state = _find_state(path, content)
    size = sum(value.numel() * value.element_size() for value in state.values())
    if size > 4 * path.stat().st_size:  # one value may stand for many
        raise WeightsError(f"{path} is damaged: its tensors have {size:,} bytes, more than it")
    names = {k: _INNER.sub("", k).removeprefix("module.") for k in state if k != "n_averaged"}
    for prefix in _OUTER * 3:
        if all(name.startswith(prefix) for name in names.values()):
            names = {key: name.removeprefix(prefix) for key, name in names.items()}
    return {name: state[key] for key, name in names.items()}


def _find_state(path: Path, content: Any) -> dict[str, Tensor]:
    """The state dict in the content of a file, in up to three wrappers."""
    state = content
    for _ in range(3):
        keys = _WRAPPERS if isinstance(state, dict) else ()
        found = [key for key in keys if isinstance(state.get(key), dict)]
        state = state[found[0]] if found else state
        for other in (key for key in found[1:] if "ema" in key):
            _log.warning(f"{path}: taken is {found[0]}; for the average {other}, save it alone")
    entries = state.items() if isinstance(state, dict) else ()
    if not entries or not all(isinstance(k, str) and isinstance(x, Tensor) for k, x in entries):
        raise WeightsError(f"{path} contains no state_dict of tensors, but {_describe(content)}")
    return state


def _read_caffe2(path: Path) -> dict[str, Tensor]:
    """Read the ``blobs`` of a Caffe2 pickle: numeric arrays by name, and nothing else."""
    refuse_web_page(path)
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise any error
        raise WeightsError(f"{path} is damaged, or not a Caffe2 file of arrays: {error}") from None
    blobs = content.get("blobs") if isinstance(content, dict) else None
    if not isinstance(blobs, dict):
        raise WeightsError(f"{path} holds no Caffe2 blobs, but {_describe(content)}")
    if sum(getattr(blob, "nbytes", 0) for blob in blobs.values()) > path.stat().st_size:
        raise WeightsError(f"{path} has arrays larger than the file")
    state: dict[str, Tensor] = {}
    for name, blob in blobs.items():
        array = np.asarray(blob)
        if not isinstance(name, str) or array.dtype.kind not in "fiu":
            raise WeightsError(f"{path}: blob {name!r} holds {array.dtype}, not numbers")
        state[name] = torch.from_numpy(np.array(array))  # a copy that torch may write to
    return state


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays, numbers, strings and containers only."""

    def find_class(self, module: str, name: str) -> Any:
        found = _PARTS.get((module.replace("numpy._core", "numpy.core"), name))
        if found is None:
            raise pickle.UnpicklingError(
                f"it requests {module}.{name}, which is not part of an array and could execute "
                "code; it is not loaded"
            )
        return found


def _describe(content: Any) -> str:
    if isinstance(content, dict) and content:
        return f"keys {', '.join(map(str, list(content)[:5]))}"
    return type(content).__name__
