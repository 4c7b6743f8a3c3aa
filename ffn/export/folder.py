"""Export all sub-networks of a frame-flexible network to one folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ffn.core import FrameFlexible, nearest
from ffn.export.exporter import ExportReport, deploy, write_checked
from ffn.export.formats import find_format, suffix_of
from ffn.export.onnx_format import share_tensors
from ffn.files import refuse_existing, write_text

INDEX, SHARED = "index.json", "weights.bin"


def export_all(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    to: str = "onnx",
    size: int | tuple[int, int] | None = None,
    preprocess: bool = False,
    probabilities: bool = False,
    dynamic_frames: bool = False,
    record: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> list[ExportReport]:
    """Export the sub-network of each trained count, with an index, to one folder.

    ``index.json`` has the numbers of frames that each file answers for; it is written last. ONNX
    files share their weights: tensors that are equal are stored once, in ``weights.bin``.
    Interpolated counts are left out; :func:`ffn.export` writes one of them.

    Args:
        model: a frame-flexible network.
        folder: may exist.
        to: "torch", "onnx", "aotinductor", or the suffix of a registered format.
        size, preprocess, probabilities, dynamic_frames, record: see :func:`ffn.export`.
        overwrite: replace existing files.

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
        write = find_format(path)
        network = deploy(
            model,
            count,
            write,
            size=size,
            preprocess=preprocess,
            probabilities=probabilities,
            dynamic_frames=dynamic_frames,
            record=record,
            fused=not shares,  # folded weights differ between counts
        )
        network.fold_norms = not shares
        reports.append(write_checked(network, path, write))
    if shares:
        share_tensors(paths.values(), folder / SHARED)
    _write_index(folder, reports, _answered(model, dynamic_frames))
    return reports


def _answered(model: FrameFlexible, dynamic_frames: bool) -> dict[int, tuple[int, int | None]]:
    """First and last number of frames that the file of each count takes; None: no last."""
    trained = model.trained_frames
    if not dynamic_frames:
        return {count: (count, count) for count in trained}
    owners = [nearest(frames, model.ranges) for frames in range(1, trained[-1] + 1)]
    ends = {count: len(owners) - owners[::-1].index(count) for count in trained[:-1]}
    return {c: (owners.index(c) + 1, ends.get(c)) for c in trained}


def _write_index(
    folder: Path, reports: list[ExportReport], answered: Mapping[int, tuple[int, int | None]]
) -> None:
    files = []
    for report in reports:
        first, last = answered[report.metadata["sub_network"]]
        first = max(first, report.metadata.get("least_frames", 1))
        files.append({"first": first, "last": last, **report.to_dict()})
    index: dict[str, Any] = {"files": files}
    if (folder / SHARED).exists():
        digest = hashlib.sha256((folder / SHARED).read_bytes()).hexdigest()
        index["shared_weights"] = {"file": SHARED, "sha256": digest}
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
