"""The folder of a run: its checkpoints, the newest good one, and one run at a time.

::

    checkpoints/step_00000123.pt    the newest few
    last.pt                         the newest, the same file
    best.pt                         the best network
    .lock, .lock.json               who trains here
    *.broken                        checkpoints that could not be read, kept for whoever wonders why
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

from ffn.engine.checkpoint import (
    CheckpointError,
    UnreadableCheckpoint,
    load_checkpoint,
    not_written,
    save_checkpoint,
)
from ffn.engine.run_lock import WAIT, lock_folder
from ffn.files import part_of, sync_folder

_STEP = re.compile(r"step_(\d{8}|[1-9]\d{8,})\.pt")
_PART = re.compile(
    r"\.((last|best|step_\d+)\.pt|\.lock\.json|config\.yaml|(log|bad_batches)\.jsonl)\.\d+\.part"
)


class Newest(NamedTuple):
    """The newest good checkpoint.

    Attributes:
        path: where it lies.
        content: what :func:`ffn.engine.checkpoint.load_checkpoint` returned.
        passed_over: newer files that cannot be used, each with its reason; print them.
    """

    path: Path
    content: dict[str, Any]
    passed_over: list[str]


class CheckpointFolder:
    """The checkpoints of a run. One process of the run uses it, within :meth:`lock`.

    Args:
        folder: of the run.
        keep: number of newest checkpoints that stay, at least 1; older ones are removed.

    Raises:
        ValueError: ``keep`` is below 1.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint stays")
        self.folder, self.keep = folder, keep
        self._steps_folder = folder / "checkpoints"
        self._last, self._best = folder / "last.pt", folder / "best.pt"
        self._good: set[Path] = set()  # read or written here
        self._broken: set[Path] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to continue from, good or broken."""
        return not self._steps() and not self._last.exists()

    @contextmanager
    def lock(self, wait: float = WAIT) -> Iterator[str | None]:
        """Own the folder, which is made if need be; remove what a dead run left half written.

        The system frees the lock of a process that dies, however it dies.

        Args:
            wait: seconds to wait for another run to end.

        Yields:
            What to print if the file system has no locks, so that another run would not be noticed.

        Raises:
            ffn.engine.run_lock.FolderInUse: another run has it; the message says which.
            ConfigError: the folder cannot be made or written to.
        """
        with lock_folder(self.folder, wait) as note:
            self._remove_parts()
            yield note

    def save(self, content: dict[str, Any], step: int) -> Path:
        """Write the checkpoint of a step, make it ``last.pt``, then remove the oldest.

        Args:
            content: as :func:`ffn.engine.checkpoint.save_checkpoint` takes it.
            step: optimiser steps done.

        Returns:
            Its path.

        Raises:
            CheckpointError: it cannot be written; all that was there is still there.
        """
        path = self._steps_folder / f"step_{step:08d}.pt"
        self._prepare(path, self._last)
        save_checkpoint(path, content)
        self._good.add(path)
        try:
            self._link_last(path)
            steps = self._steps()  # those after this one are not its past, and stay
            for old in sorted(number for number in steps if number <= step)[: -self.keep]:
                steps[old].unlink()
                self._good.discard(steps[old])
        except OSError as error:
            raise not_written(Path(error.filename or self._last), error) from error
        return path

    def save_best(self, content: dict[str, Any]) -> Path:
        """Write ``best.pt``. Arguments and errors of :meth:`save`."""
        self._prepare(self._best)
        save_checkpoint(self._best, content)
        self._good.add(self._best)
        return self._best

    def newest(self) -> Newest | None:
        """The newest checkpoint that is whole and that a run can go on from.

        Nothing is changed here. Files that were passed over get the ending ``.broken`` when the
        run saves the next time.

        Returns:
            The checkpoint; None if the folder has none at all.

        Raises:
            CheckpointError: there are some, and none is good; each is named.
            UnreadableCheckpoint: the newest may be good, but not for this version or this user.
        """
        numbered = [(step, path) for step, path in self._steps().items()]
        refused: dict[Path, str] = {}
        if self._last.exists() and not any(_same(self._last, path) for _, path in numbered):
            # From before there were numbered ones, a copy, or put there by hand: it knows its step.
            content = self._read(self._last, refused)
            if content is not None:
                numbered.append((content["training"]["step"], self._last))
        # Of one step, the numbered file stays before last.pt.
        for _, path in sorted(numbered, key=itemgetter(0), reverse=True):
            content = self._read(path, refused)
            if content is not None:
                self._good.add(path)
                self._broken = set(refused)
                return Newest(path, content, list(refused.values()))
        if not refused:
            return None
        listed = "".join(f"\n  {why}" for why in refused.values())
        raise CheckpointError(
            f"{self.folder} holds {len(refused)} checkpoint(s) and none can be used:{listed}\n"
            "Nothing was changed. Put a copy back, or start anew in another log.output, perhaps "
            f"with model.weights={self._best}"
        )

    def _read(self, path: Path, refused: dict[Path, str]) -> dict[str, Any] | None:
        try:
            content = load_checkpoint(path)
            training = content.get("training")
            if not isinstance(training, dict) or not isinstance(training.get("step"), int):
                raise CheckpointError(f"{path} has no training state to continue from")
        except UnreadableCheckpoint:
            raise
        except CheckpointError as error:
            refused[path] = str(error.__cause__ or error)
            return None
        return content

    def _steps(self) -> dict[int, Path]:
        """The numbered checkpoints; whatever else lies there is not ours."""
        found = self._steps_folder.iterdir() if self._steps_folder.is_dir() else ()
        matches = [(_STEP.fullmatch(path.name), path) for path in found]
        return {int(match[1]): path for match, path in matches if match}

    def _prepare(self, *targets: Path) -> None:
        """Nothing broken is overwritten: it moves aside, for whoever wonders what happened."""
        if not self.folder.is_dir():
            gone = OSError(errno.ENOENT, "the folder of the run is gone")
            raise not_written(targets[0], gone)
        for path in targets:
            if path.exists() and not any(_same(path, good) for good in self._good):
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
            part.unlink(missing_ok=True)  # a link that a dead run left: not to be written through
            try:
                os.link(path, part)
            except OSError:  # no links here, or not this many
                _copy(path, part)
            os.replace(part, self._last)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)
        self._good.add(self._last)

    def _remove_parts(self) -> None:
        """What a process that died was writing; nobody else writes while the lock is held."""
        for path in [*self.folder.glob(".*.part"), *self._steps_folder.glob(".*.part")]:
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
