"""Export all sub-networks of a frame-flexible network to one folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ffn.core import FrameFlexible, nearest
from ffn.export.exporter import ExportReport, deploy, write_checked
from ffn.export.formats import find_format, suffix_of
from ffn.export.shared_weights import share_tensors
from ffn.files import part_of, write_text

INDEX, SHARED = "index.json", "weights.bin"


@dataclass(frozen=True)
class FolderReport:
    """What was exported to a folder.

    Attributes:
        folder: with ``index.json``.
        files: one report per trained count.
        separate: bytes of the files if each had its own weights.
    """

    folder: Path
    files: tuple[ExportReport, ...]
    separate: int

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def __str__(self) -> str:
        megabytes = f"{self.size / 1e6:.2f} MB; separate files: {self.separate / 1e6:.2f} MB"
        return "\n".join([*map(str, self.files), f"{self.folder}: {megabytes}"])


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
) -> FolderReport:
    """Export the sub-network of each trained count, with an index, to one folder.

    ``index.json`` has the numbers of frames that each file answers for. ONNX files share their
    weights: tensors that are equal are stored once, in ``weights.bin``. Interpolated counts are
    left out; :func:`ffn.export` writes one of them.

    Args:
        model: a frame-flexible network.
        folder: new or empty; with ``overwrite``, an earlier export is replaced.
        to: the format, see :func:`ffn.export`; so are the other arguments.

    Raises:
        ValueError: the network is not frame-flexible; or as :func:`ffn.export`, as are the others.
    """
    folder = Path(folder)
    if not isinstance(model, FrameFlexible):
        raise ValueError(f"model is a {type(model).__name__}, which has one network; use export")
    _check_folder(folder, overwrite)
    target = folder.resolve()  # a link stays, and the folder that it names is replaced
    part = part_of(target)
    shutil.rmtree(part, ignore_errors=True)  # of an attempt that was killed
    shares = to == "onnx"
    reports = []
    try:
        for count in model.trained_frames:
            path = part / f"frames_{count}{suffix_of(to)}"
            write = find_format(path, to)
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
        separate = sum(report.path.stat().st_size for report in reports)
        if shares:
            share_tensors([report.path for report in reports], part / SHARED)
        _write_index(part, reports, _answered(model, dynamic_frames))
        if target.exists():
            shutil.rmtree(target)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    moved = tuple(replace(report, path=folder / report.path.name) for report in reports)
    return FolderReport(folder, moved, separate)


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Raise FileExistsError for a folder with files, but for an export that is to be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise FileExistsError(
            f"{folder} exists; choose another name, or overwrite it: overwrite=True in Python, "
            "--overwrite in a command"
        )
    known = (INDEX, SHARED)
    others = [p.name for p in folder.iterdir() if p.name not in known and p.stem[:7] != "frames_"]
    if others or not (folder / INDEX).exists():
        raise FileExistsError(
            f"{folder} is not a folder of an export alone; choose another name, or move what you "
            "want to keep"
        )


def _answered(model: FrameFlexible, dynamic_frames: bool) -> dict[int, tuple[int, int | None]]:
    """First and last number of frames that the file of each count takes; None: no last."""
    trained = model.trained_frames
    if not dynamic_frames:
        return {count: (count, count) for count in trained}
    owners = [nearest(frames, model.ranges) for frames in range(1, trained[-1] + 1)]
    ends = {count: len(owners) - owners[::-1].index(count) for count in trained[:-1]}
    return {c: (owners.index(c) + 1, ends.get(c)) for c in trained}


def _write_index(
    folder: Path,
    reports: Sequence[ExportReport],
    answered: Mapping[int, tuple[int, int | None]],
) -> None:
    files = []
    for report in reports:
        first, last = answered[report.active]
        first = max(first, report.metadata.get("least_frames", 1))
        files.append({"first": first, "last": last, **report.to_dict()})
    index: dict[str, Any] = {"files": files}
    if (folder / SHARED).exists():
        digest = hashlib.sha256((folder / SHARED).read_bytes()).hexdigest()
        index["shared_weights"] = {"file": SHARED, "sha256": digest}
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
