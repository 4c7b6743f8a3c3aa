"""Checkpoint files, and the folder of a run.

::

    config.yaml                     all options
    videos.csv.gz                   the videos, to notice changes on resume
    log.jsonl                       numbers of training and validation
    checkpoints/step_00000123.pt    the newest few, to resume from
    last.pt                         the newest of them; the same file
    best.pt                         the network with the best validation so far
    finished.json                   accuracy of the last validation; the run is complete

``last.pt``: the newest checkpoint: to resume, and for a test on the validation videos themselves.
``best.pt`` is for everything else: to test, predict, export, publish, and to start other runs from.

A checkpoint is a dict::

    format    2
    model     the network's state dict
    meta      model, num_classes, trained_frames, classes, preprocessing, metrics per frame count,
              imports, config, versions, data fingerprint: plain values
    training  optimizer, scaler, statistics per process, counters, position; absent in best.pt

Every load checks the CRC-32 of its parts (:mod:`ffn.zoo.torch_files`).
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from ffn.files import atomic_write, part_of, sync_folder, write_text
from ffn.zoo.records import WeightsError
from ffn.zoo.torch_files import CHECKPOINT_FORMAT, load_tensors

WAIT = 10.0  # seconds for a run that is ending, and its loader workers, to release the lock
STEP = re.compile(r"step_(\d{8,})\.pt")


class CheckpointError(ValueError):
    """A file that is not a valid checkpoint; the message has the remedy."""


class RunError(ValueError):
    """A run folder that this run cannot use; the message has the remedy."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically and sync it to the disk.

    Args:
        path: the file; its folder is created.
        content: ``model``, ``meta`` and perhaps ``training``.

    Raises:
        OSError: it cannot be written; the previous file stays, and no partial file is left.
    """
    data = io.BytesIO()
    torch.save({**content, "format": CHECKPOINT_FORMAT}, data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, sync=True) as file:
        file.write(data.getbuffer())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without executing pickled code.

    Raises:
        CheckpointError: the file is missing, truncated, altered, or not a checkpoint of ffn.
        OSError: it cannot be opened or read.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint {path}")
    try:
        content = load_tensors(path)
    except WeightsError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of ffn; ffn convert_checkpoint "
            "reads other formats"
        )
    return content


class RunFolder:
    """Writes and finds the checkpoints of a run. One process uses it, within :meth:`lock`.

    Args:
        path: the folder.
        keep: number of newest checkpoints to keep, at least 1; older ones are removed.
    """

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    @contextmanager
    def lock(self, wait: float = WAIT) -> Iterator[None]:
        """Create and lock the folder; remove partial files of a killed run.

        The system releases the lock when the process ends.

        Args:
            wait: seconds to wait for another run to end.

        Raises:
            RunError: another run has it.
            OSError: the folder cannot be created or written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=wait)
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"another run trains in {self.path}; wait for it, stop it, or choose another "
                "log.output"
            ) from None
        try:
            for folder in (self.path, self.path / "checkpoints"):
                for part in folder.glob(".*.part"):
                    part.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def save(self, content: dict[str, Any], step: int) -> None:
        """Write the checkpoint of a step, link it as ``last.pt``, and remove the oldest.

        Args:
            content: as :func:`save_checkpoint` takes it.
            step: optimizer steps done.

        Raises:
            OSError: it cannot be written; all earlier files stay.
        """
        path = self.path / "checkpoints" / f"step_{step:08d}.pt"
        save_checkpoint(path, content)
        last = self.path / "last.pt"
        part = part_of(last)
        part.unlink(missing_ok=True)
        try:
            os.link(path, part)
        except OSError:  # the file system has no hard links
            shutil.copyfile(path, part)
        os.replace(part, last)
        sync_folder(self.path)
        older = [path for number, path in self._steps() if number <= step]
        for old in older[self.keep :]:
            old.unlink()

    def save_best(self, content: dict[str, Any]) -> None:
        """Write ``best.pt``. Arguments and errors are those of :meth:`save`."""
        save_checkpoint(self.path / "best.pt", content)

    def newest(self) -> tuple[Path, dict[str, Any], list[str]] | None:
        """Load the newest valid checkpoint with a training state.

        Returns:
            Its path, its content, and a message for each newer file that is not valid; None if the
            folder has no checkpoint at all.

        Raises:
            CheckpointError: there are checkpoints, and none is valid; each is named.
            OSError: the newest one cannot be read; it may be valid.
        """
        paths, invalid = [path for _, path in self._steps()], []
        last = self.path / "last.pt"
        for path in [*paths, *([last] if last.exists() else [])]:
            try:
                content = load_checkpoint(path)
            except CheckpointError as error:
                invalid.append(f"invalid checkpoint: {error}")
                continue
            if "training" in content:
                return path, content, invalid
            invalid.append(f"{path} has no training state to resume from")
        if not invalid:
            return None
        listed = "\n  ".join(invalid)
        raise CheckpointError(
            f"no checkpoint in {self.path} can be used:\n  {listed}\nNo file was changed. Restore "
            f"a copy, or choose another log.output, e.g. with model.weights={self.path}/best.pt"
        )

    @property
    def is_new(self) -> bool:
        """Whether the folder has no checkpoint, valid or not."""
        return not self._steps() and not (self.path / "last.pt").exists()

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete."""
        return (self.path / "finished.json").exists()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write ``finished.json``, with plain values that describe the result."""
        write_text(self.path / "finished.json", json.dumps(summary, indent=1) + "\n")

    def write_config(self, options: dict[str, Any]) -> None:
        """Write ``config.yaml``; a run that goes on with more epochs is no longer finished."""
        text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
        write_text(self.path / "config.yaml", text)
        (self.path / "finished.json").unlink(missing_ok=True)

    def _steps(self) -> list[tuple[int, Path]]:
        """The numbered checkpoints, the newest first; other files are ignored."""
        found = (self.path / "checkpoints").glob("step_*.pt")
        matches = [(STEP.fullmatch(path.name), path) for path in found]
        return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def numbered_folder(first: Path, is_same_run: Callable[[dict[str, Any]], bool]) -> Path:
    """The folder of a run without a name: ``first``, or the first free ``first_2``, ``first_3``, …

    Started again, a command finds the folder of its unfinished run. A folder with a finished run,
    or with one of other options, is passed over.

    Args:
        first: e.g. ``runs/motion_flexible``.
        is_same_run: given the options in a folder's ``config.yaml``, whether the run may go on.
    """
    for number in count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}_{number}")
        run, options = RunFolder(folder), read_options(folder)
        own = ("config.yaml", "best.pt")
        if run.is_new and not any((folder / name).exists() for name in own):
            return folder
        if options is not None and not run.is_finished and is_same_run(options):
            return folder
    raise AssertionError("unreachable")


def read_options(folder: Path) -> dict[str, Any] | None:
    """The options in ``config.yaml`` of a run's folder; None if there are none."""
    try:
        options = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return options if isinstance(options, dict) else None


def versions() -> dict[str, str]:
    """Versions of the libraries that determine results."""
    import timm
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": str(torchvision.__version__),
        "timm": str(timm.__version__),
    }
