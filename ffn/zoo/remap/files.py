"""Read state dicts from files of other implementations, without executing pickled code."""

from __future__ import annotations

import codecs
import io
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import load_tensors, refuse_web_page

_WRAPPERS = ("state_dict", "model_state", "model")
# What pickled arrays request: numpy's constructors of arrays and scalars, in any version.
_ARRAY, _SCALAR = np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0]
_PARTS = {
    ("collections", "OrderedDict"): OrderedDict,
    ("_codecs", "encode"): codecs.encode,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
}
_NUMPY_SCALARS = [
    (_SCALAR, "numpy.core.multiarray.scalar"),
    _SCALAR,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")),
]


def read_foreign(path: Path) -> dict[str, Tensor]:
    """Read the state dict in a ``.pth``, ``.pth.tar``, ``.pyth`` or Caffe2 ``.pkl`` file.

    It is the value of ``state_dict``, ``model_state`` or ``model``, or the file's whole content.
    The prefix ``module.`` of DataParallel and DDP is removed.

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
    with torch.serialization.safe_globals(_NUMPY_SCALARS):  # metrics stored with the tensors
        content = load_tensors(path)
    state = content
    if isinstance(content, dict):
        state = next((content[key] for key in _WRAPPERS if key in content), content)
    if not _is_state(state):
        raise WeightsError(f"{path} contains no state_dict of tensors, but {_describe(content)}")
    return {key.removeprefix("module."): value for key, value in state.items()}


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


def _is_state(state: Any) -> bool:
    return (
        isinstance(state, dict)
        and bool(state)
        and all(isinstance(k, str) and isinstance(x, Tensor) for k, x in state.items())
    )


def _describe(content: Any) -> str:
    if isinstance(content, dict) and content:
        return f"keys {', '.join(map(str, list(content)[:5]))}"
    return type(content).__name__
