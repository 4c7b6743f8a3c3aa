"""The folder of a run: its checkpoints, the newest valid one, and its lock.

::

    checkpoints/step_00000123.pt    the newest few
    last.pt                         the newest, the same file
    best.pt                         the best network
    .lock, .lock.json               lock of the run that writes here, and its owner
    *.broken                        unreadable checkpoints, kept for inspection
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ffn.engine.checkpoints.file import (
    CheckpointError,
    UnreadableCheckpoint,
    load_checkpoint,
    not_written,
    save_checkpoint,
)
from ffn.engine.checkpoints.lock import WAIT, lock_folder
from ffn.files import part_of, sync_folder

_STEP = re.compile(r"step_(\d{8}|[1-9]\d{8,})\.pt")
_PART = re.compile(
    r"\.((last|best|step_\d+)\.pt|\.lock\.json|config\.yaml|videos\.csv\.gz|unreadable\.txt|(log|bad_batches)\.jsonl)\.\d+\.part"
)


class Newest(NamedTuple):
    """The newest valid checkpoint.

    Attributes:
        path: of the file.
        content: as :func:`ffn.engine.checkpoints.file.load_checkpoint` returned it.
        invalid: one message per newer file that is not valid.
    """

    path: Path
    content: dict[str, Any]
    invalid: list[str]


class RunFolder:
    """Writes and finds the checkpoints of a run. One process uses it, within :meth:`lock`.

    Args:
        path: the folder.
        keep: number of newest checkpoints to keep, at least 1; older ones are removed.

    Raises:
        ValueError: ``keep`` is below 1.
    """

    def __init__(self, path: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must be kept")
        self.path, self.keep = path, keep
        self._steps_folder = path / "checkpoints"
        self._last, self._best = path / "last.pt", path / "best.pt"
        self._valid: set[Path] = set()  # files that this process read or wrote
        self._broken: set[Path] = set()

    @property
    def is_empty(self) -> bool:
        """Whether the folder has no checkpoint, valid or not."""
        return not self._steps() and not self._last.exists()

    @contextmanager
    def lock(self, wait: float = WAIT) -> Iterator[str | None]:
        """Create and lock the folder; remove partial files of a killed run.

        The system releases the lock when the process ends.

        Args:
            wait: seconds to wait for another run to end.

        Yields:
            A warning if the file system has no locks; else None.

        Raises:
            ffn.engine.checkpoints.lock.FolderInUse: another run has it; the message names it.
            RunError: the folder cannot be created or written.
        """
        with lock_folder(self.path, wait) as note:
            self._remove_parts()
            yield note

    def save(self, content: dict[str, Any], step: int) -> Path:
        """Write the checkpoint of a step, link it as ``last.pt``, and remove the oldest.

        Args:
            content: as :func:`ffn.engine.checkpoints.file.save_checkpoint` takes it.
            step: optimizer steps done.

        Returns:
            Its path.

        Raises:
            CheckpointError: it cannot be written; all earlier files stay.
        """
        path = self._steps_folder / f"step_{step:08d}.pt"
        self._prepare(path, self._last)
        save_checkpoint(path, content)
        self._valid.add(path)
        try:
            self._link_last(path)
            steps = self._steps()  # later ones belong to another run and are kept
            for old in sorted(number for number in steps if number <= step)[: -self.keep]:
                steps[old].unlink()
                self._valid.discard(steps[old])
        except OSError as error:
            raise not_written(Path(error.filename or self._last), error) from error
        return path

    def save_best(self, content: dict[str, Any]) -> Path:
        """Write ``best.pt``. Arguments and errors are those of :meth:`save`."""
        self._prepare(self._best)
        save_checkpoint(self._best, content)
        self._valid.add(self._best)
        return self._best

    def newest(self) -> Newest | None:
        """Load the newest valid checkpoint with a training state.

        No file changes. Invalid files get the suffix ``.broken`` at the next save.

        Returns:
            The checkpoint; None if the folder has none at all.

        Raises:
            CheckpointError: there are checkpoints, and none is valid; each is named.
            UnreadableCheckpoint: this version or this user cannot read the newest one.
        """
        numbered = [(step, path) for step, path in self._steps().items()]
        refused: dict[Path, str] = {}
        if self._last.exists() and not any(_same(self._last, path) for _, path in numbered):
            # Written by an old version, or a copy: the step is in the file.
            content = self._read(self._last, refused)
            if content is not None:
                numbered.append((content["training"]["step"], self._last))
        # For the same step, the numbered file precedes last.pt.
        for _, path in sorted(numbered, key=itemgetter(0), reverse=True):
            content = self._read(path, refused)
            if content is not None:
                self._valid.add(path)
                self._broken = set(refused)
                return Newest(path, content, list(refused.values()))
        if not refused:
            return None
        listed = "".join(f"\n  {why}" for why in refused.values())
        raise CheckpointError(
            f"{self.path} holds {len(refused)} checkpoint(s) and none can be used:{listed}\n"
            "No file was changed. Restore a copy, or start a new run in another log.output, for "
            f"example with model.weights={self._best}"
        )

    def _read(self, path: Path, refused: dict[Path, str]) -> dict[str, Any] | None:
        try:
            content = load_checkpoint(path)
            training = content.get("training")
            if not isinstance(training, dict) or not isinstance(training.get("step"), int):
                raise CheckpointError(f"{path} has no training state to resume from")
        except UnreadableCheckpoint:
            raise
        except CheckpointError as error:
            refused[path] = str(error.__cause__ or error)
            return None
        return content

    def _steps(self) -> dict[int, Path]:
        """The numbered checkpoints by step; other files are ignored."""
        found = self._steps_folder.iterdir() if self._steps_folder.is_dir() else ()
        matches = [(_STEP.fullmatch(path.name), path) for path in found]
        return {int(match[1]): path for match, path in matches if match}

    def _prepare(self, *targets: Path) -> None:
        """Rename invalid files before a save, so that none is overwritten."""
        if not self.path.is_dir():
            missing = OSError(errno.ENOENT, "the run folder is missing")
            raise not_written(targets[0], missing)
        for path in targets:
            if path.exists() and not any(_same(path, good) for good in self._valid):
                try:
                    load_checkpoint(path)
                except CheckpointError:
                    self._broken.add(path)
        try:
            for path in filter(Path.exists, self._broken):
                os.replace(path, _free_name(path))
        except OSError as error:
            raise not_written(targets[0], error) from error
        self._broken.clear()

    def _link_last(self, path: Path) -> None:
        part = part_of(self._last)
        try:
            part.unlink(missing_ok=True)  # of a killed run; writing to it would write to its target
            try:
                os.link(path, part)
            except OSError:  # the file system has no hard links, or too many of this file
                _copy(path, part)
            os.replace(part, self._last)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        sync_folder(self.path)
        self._valid.add(self._last)

    def _remove_parts(self) -> None:
        """Remove partial files of a killed process; the lock excludes other writers."""
        for path in [*self.path.glob(".*.part"), *self._steps_folder.glob(".*.part")]:
            if _PART.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False


def _free_name(path: Path) -> Path:
    """``last.pt.broken``, or with a number if that is taken."""
    aside, number = path.with_name(f"{path.name}.broken"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.broken{number}")
    return aside


def _copy(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
