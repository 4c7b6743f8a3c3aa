"""Export all sub-networks of a frame-flexible network to one folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ffn.core import FrameFlexible, nearest
from ffn.export.exporter import ExportReport, deploy, write_checked
from ffn.export.formats import require, suffix_of
from ffn.files import refuse_existing, write_text

INDEX, SHARED = "index.json", "weights.bin"
SMALLEST = 1024  # bytes; smaller tensors are not shared
ALIGNMENT = 64  # bytes


def export_all(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    to: str = "onnx",
    overwrite: bool = False,
    **options: Any,
) -> list[ExportReport]:
    """Export the sub-network of each trained count, with an index, to one folder.

    ``index.json`` has the numbers of frames that each file answers for; it is written last. ONNX
    files share their weights: tensors that are equal are stored once, in ``weights.bin``.
    Interpolated counts are left out; :func:`ffn.export` writes one of them.

    Args:
        model: a frame-flexible network.
        folder: may exist.
        to: "torch", "onnx", "aotinductor", or the suffix of a registered format.
        overwrite: replace existing files.
        options: ``size``, ``preprocess``, ``probabilities``, ``dynamic_frames`` and ``record`` of
            :func:`ffn.export`.

    Returns:
        A report per trained count.

    Raises:
        ValueError: the network is not frame-flexible; or as :func:`ffn.export`, as are the others.
    """
    folder, shares = Path(folder), to == "onnx"
    if not isinstance(model, FrameFlexible):
        raise ValueError(f"model is a {type(model).__name__}, which has one network; use export")
    paths = {n: folder / f"frames_{n}{suffix_of(to)}" for n in model.trained_frames}
    refuse_existing([*paths.values(), folder / INDEX, folder / SHARED], overwrite)
    (folder / INDEX).unlink(missing_ok=True)
    reports = []
    for count, path in paths.items():
        # Folded weights differ between counts.
        network = deploy(model, count, path, fold=not shares, **options)
        reports.append(write_checked(network, path))
    index: dict[str, Any] = {}
    if shares:
        _share_tensors(paths.values(), folder / SHARED)
        digest = hashlib.sha256((folder / SHARED).read_bytes()).hexdigest()
        index["shared_weights"] = {"file": SHARED, "sha256": digest}
    index["files"] = [_answered(model, r.metadata) | r.to_dict() for r in reports]
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
    return reports


def _answered(model: FrameFlexible, stated: Mapping[str, Any]) -> dict[str, int | None]:
    """First and last number of frames that a file takes; None: no last."""
    count, largest = stated["sub_network"], model.trained_frames[-1]
    if not stated["any_frames"]:
        return {"first": count, "last": count}
    nearest_of = [nearest(frames, model.ranges) for frames in range(1, largest + 1)]
    answered = [n for n, trained in enumerate(nearest_of, 1) if trained == count]
    first = max(answered[0], stated.get("least_frames", 1))
    return {"first": first, "last": answered[-1] if count < largest else None}


def _share_tensors(paths: Iterable[Path], shared: Path) -> None:
    """Move the tensors of ONNX files to one file next to them; equal tensors are stored once."""
    onnx = require("onnx")
    places: dict[bytes, int] = {}  # by hash
    with shared.open("wb") as file:
        for path in paths:
            model = onnx.load(path)
            for tensor in model.graph.initializer:
                values = onnx.numpy_helper.to_array(tensor).tobytes()
                if len(values) < SMALLEST:
                    continue
                digest = hashlib.sha256(values).digest()
                if digest not in places:
                    file.write(b"\0" * (-file.tell() % ALIGNMENT))
                    places[digest] = file.tell()
                    file.write(values)
                tensor.raw_data = values
                onnx.external_data_helper.set_external_data(
                    tensor, shared.name, offset=places[digest], length=len(values)
                )
                tensor.ClearField("raw_data")
            path.write_bytes(model.SerializeToString())
