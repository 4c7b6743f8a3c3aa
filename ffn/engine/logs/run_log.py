"""Log of a run: progress bar, console lines, ``log.jsonl``, TensorBoard and wandb.

All of them have the same numbers under the same keys, ``train/loss``, ``val/top1/8``, …;
docs/logging.md lists them. Only the main process logs.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ffn.engine.distributed import World, gather
from ffn.engine.logs import console
from ffn.engine.logs.trackers import TensorBoardTracker, Tracker, start_wandb
from ffn.engine.signals import StoppedError
from ffn.files import keep_damaged, naming, printable, write_text

NAME = "log.jsonl"
UNREADABLE = "unreadable.txt"

_logger = logging.getLogger(__name__)


class RunLog:
    """Writes a run's numbers to the console, ``log.jsonl``, TensorBoard and wandb.

    A context manager. The log of a resumed run equals that of an uninterrupted one: lines of steps
    after ``first_step`` are removed, since the run repeats these steps, and a line that exists for
    ``first_step`` itself is not written again.

    Args:
        folder: the run's folder.
        world: the processes; the log of all but the main one does nothing.
        first_step: optimizer steps done; 0 removes all lines of an earlier run.
        total_steps: optimizer steps of the run, for the progress bar.
        wandb_mode: "auto", "online", "offline" or "disabled".
        project: wandb project.
        config: shown in wandb.
        tensorboard: whether to write event files into ``folder/tensorboard``.

    Raises:
        ImportError: TensorBoard is requested and not installed.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        *,
        first_step: int,
        total_steps: int,
        wandb_mode: str,
        project: str,
        config: dict[str, Any],
        tensorboard: bool = False,
    ) -> None:
        self.active, self._folder = world.is_main, folder
        self._listed: set[str] = set()  # unreadable videos
        logging.getLogger().setLevel(logging.INFO if self.active else logging.WARNING)
        self.console = Console(quiet=not self.active, highlight=False, markup=False, soft_wrap=True)
        self._step, self._written = first_step, []  # keys of each record of the step
        self._trackers: list[Tracker] = []
        if self.active:
            kept = _drop_later(folder / NAME, first_step)
            self._written = [set(_numbers(line)) for line in kept if line["step"] == first_step]
            if tensorboard:
                self._trackers.append(TensorBoardTracker(folder / "tensorboard", first_step))
            if wandb_mode != "disabled":
                self._trackers.append(start_wandb(folder, first_step, wandb_mode, project, config))
                _send(kept, self._trackers[-1])
            self._file = (folder / NAME).open("a")
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
            disable=not (self.active and self.console.is_terminal),
            transient=True,
        )
        self._bar = self._progress.add_task(
            "steps", total=total_steps, completed=first_step, rate=""
        )

    def __enter__(self) -> RunLog:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self.active:
            self._file.close()
        for tracker in self._trackers:
            tracker.close(failed=not (kind is None or issubclass(kind, StoppedError)))

    def print(self, text: str) -> None:
        """Print a line on the console."""
        self._progress.console.print(printable(text))

    def unreadable(self, title: str, reasons: Sequence[str]) -> None:
        """Print a title, and list unreadable videos on the console and in ``unreadable.txt``.

        Args:
            title: about these videos.
            reasons: one line per video; those that were listed before are left out.
        """
        if not self.active or not reasons:
            return
        path = self._folder / UNREADABLE
        known = path.read_text("utf-8", "surrogateescape").splitlines() if path.is_file() else []
        found = {" ".join(reason.split()) for reason in reasons}
        lines = sorted({*known, *found})
        if lines != known:
            write_text(path, "".join(f"{line}\n" for line in lines))
        self.print(console.unreadable(title, sorted(found - self._listed), path))
        self._listed |= found

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a text in place of "steps" on the progress bar."""
        self._progress.update(self._bar, description=text)
        yield
        self._progress.update(self._bar, description="steps")

    def step(self, step: int, rate: str) -> None:
        """Move the progress bar."""
        self._progress.update(self._bar, completed=step, rate=rate)

    def record(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write numbers with the step they belong to.

        Args:
            kind: "train" or "val", the first part of every key.
            step: optimizer steps done; never lower than at the last call.
            values: numbers by key, ``{"loss": 1.2, "top1/8": 34.0}``.
        """
        if not self.active:
            return
        if step != self._step:
            self._step, self._written = step, []
        numbers = {f"{kind}/{key}": value for key, value in values.items()}
        if set(numbers) in self._written:
            return
        line = {"step": step, "time": round(time.time(), 3), **numbers}
        with naming(Path(self._file.name)):
            self._file.write(_to_json(line) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker.record(step, len(self._written), numbers)
        self._written.append(set(numbers))


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Read the lines of a run's log, in order; the run may still be in progress.

    Non-finite numbers, null in the file, become NaN. An incomplete last line is left out. Lines of
    the first format, ``{"kind": "train", "loss": 1.2}``, are converted.

    Args:
        path: a run's folder, or its ``log.jsonl``.

    Returns:
        ``{"step": 12, "time": 1.7e9, "train/loss": 1.2, …}`` per line; time in seconds since 1970.

    Raises:
        FileNotFoundError: there is no log.
        ValueError: a line before the last is not a log line.
    """
    path = Path(path)
    if path.is_dir():
        path = path / NAME
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run (log.output)")
    *lines, last = path.read_text("utf-8", errors="replace").split("\n")
    entries = [_parse(line) for line in lines]
    if None in entries:
        raise ValueError(f"{path}, line {entries.index(None) + 1} is not a line of a training log")
    unfinished = _parse(last)  # complete but for the line break, or cut
    return entries + ([unfinished] if unfinished else [])


def _drop_later(path: Path, first_step: int) -> list[dict[str, Any]]:
    """Remove invalid lines and those of later steps from a log; return the others."""
    if not path.is_file():
        return []
    text = path.read_text("utf-8", errors="replace")
    *entries, last = map(_parse, text.split("\n"))  # the last one may be cut
    _keep_if_damaged(path, entries)
    kept = [entry for entry in (*entries, last) if entry and entry["step"] <= first_step]
    whole = "".join(f"{_to_json(entry)}\n" for entry in kept)
    if whole != text:
        write_text(path, whole)
    return kept


def _parse(line: str) -> dict[str, Any] | None:
    """A log line in today's format; None if it is cut or not a log line."""
    try:
        entry = json.loads(line)
        kind, step, when = entry.pop("kind", None), entry.pop("step"), entry.pop("time", math.nan)
        if kind == "skipped":
            kind, entry = "train", {"skipped": entry["videos"]}
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    if kind is not None:
        entry = {f"{kind}/{key}": value for key, value in entry.items()}
    entry = {"step": step, "time": when, **entry}
    entry = {key: math.nan if value is None else value for key, value in entry.items()}
    is_valid = type(step) is int and all(type(value) in (int, float) for value in entry.values())
    return entry if is_valid else None


def _to_json(entry: dict[str, Any]) -> str:
    """Strict JSON, with null for NaN and infinities."""
    finite = {key: value if math.isfinite(value) else None for key, value in entry.items()}
    return json.dumps(finite, allow_nan=False)


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in entry.items() if key not in ("step", "time")}


def _send(kept: list[dict[str, Any]], wandb: Tracker) -> None:
    """Send wandb the lines before the resumed step: a killed run may have lost the latest ones."""
    for step, lines in groupby(kept, key=itemgetter("step")):
        for position, line in enumerate(lines):
            wandb.record(step, position, _numbers(line))


class BadBatches:
    """``bad_batches.jsonl`` of a run: one line per skipped step, with its losses and videos.

    Args:
        path: the file.
        videos: paths of the training videos, by index.
        world: the processes; the main one writes.
    """

    def __init__(self, path: Path, videos: Sequence[str], world: World) -> None:
        self.path, self._videos, self._world = path, videos, world

    def append(self, step: int, losses: Sequence[float], indices: Sequence[int]) -> None:
        """Add the line of a step; all processes call it.

        Args:
            step: its number, from 1.
            losses: of this process's micro-batches.
            indices: of this process's videos.
        """
        own = {
            "loss": [str(loss) for loss in losses],  # JSON has no NaN
            "videos": [self._videos[index] for index in indices],
        }
        line = {"step": step, "ranks": gather(own, self._world)}
        if self._world.is_main:
            with naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def truncate(self, step: int) -> None:
        """Remove damaged lines, and those of later steps, which a resumed run repeats.

        The main process calls it.
        """
        if not self.path.is_file():
            return
        lines = self.path.read_text("utf-8", errors="replace").splitlines(keepends=True)
        steps = [_step_of(line) for line in lines]
        _keep_if_damaged(self.path, steps if lines and lines[-1].endswith("\n") else steps[:-1])
        kept = [
            line for line, at in zip(lines, steps, strict=True) if at is not None and at <= step
        ]
        if kept != lines:
            write_text(self.path, "".join(kept))


def _step_of(line: str) -> int | None:
    """The step of a line; None if the line is damaged or cut."""
    try:
        step = json.loads(line)["step"] if line.endswith("\n") else None
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return step if type(step) is int else None


def _keep_if_damaged(path: Path, lines: Sequence[object]) -> None:
    """Keep a copy of a file of which a line, None here, is damaged and will be removed."""
    if None in lines:
        _logger.warning(
            "%s, line %d is damaged. The run goes on without the damaged lines; the file as it "
            "was is %s",
            path,
            list(lines).index(None) + 1,
            keep_damaged(path),
        )
