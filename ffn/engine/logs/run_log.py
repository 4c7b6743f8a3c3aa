"""Log of a run: console, progress bar, ``log.jsonl``, TensorBoard and wandb.

The last three have the same numbers under the same keys, ``train/loss``, ``val/top1/8``, …;
docs/training.md lists them. Only the main process logs.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ffn.engine.distributed import World
from ffn.engine.logs import console
from ffn.engine.logs.trackers import TensorBoardTracker, Tracker, WandbTracker
from ffn.engine.signals import StoppedError
from ffn.files import naming, printable, write_text

NAME = "log.jsonl"
UNREADABLE = "unreadable.txt"
SHOWN_EVERY = 60.0  # seconds between lines about the progress, where there is no bar


class RunLog:
    """Writes a run's numbers to the console, ``log.jsonl``, TensorBoard and wandb.

    A context manager. The console gets a line per validation; between them a terminal shows a
    progress bar, and other outputs get a line each minute.

    The log of a resumed run equals that of an uninterrupted one: lines of steps after
    ``first_step`` are removed, since the run repeats these steps, and a line that exists for
    ``first_step`` itself is not written again.

    Args:
        folder: the run's folder.
        world: the processes; the log of all but the main one does nothing.
        first_step: optimizer steps done; 0 removes all lines of an earlier run.
        total_steps: optimizer steps of the run, for the progress bar.
        wandb_mode: "disabled", "online" or "offline".
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
        self._started = self._shown = time.monotonic()
        self._header = ""
        self._trackers: list[Tracker] = []
        if self.active:
            kept = _drop_later(folder / NAME, first_step)
            self._written = [set(_numbers(line)) for line in kept if line["step"] == first_step]
            self._file = (folder / NAME).open("a")
            if tensorboard:
                self._trackers.append(TensorBoardTracker(folder / "tensorboard", first_step))
            if wandb_mode != "disabled":
                self._trackers.append(WandbTracker(folder, first_step, wandb_mode, project, config))
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (self.active and self.console.is_terminal),
            transient=True,
        )
        self._bar = self._progress.add_task(
            "steps", total=total_steps, completed=first_step, text=""
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

    def progress(self, step: int, text: str) -> None:
        """Move the progress bar; without a terminal, print the text once a minute."""
        self._progress.update(self._bar, completed=step, text=text)
        now = time.monotonic()
        if self._progress.disable and text and now - self._shown >= SHOWN_EVERY:
            self._shown = now
            self.print(f"  step {step}  {text}")

    def validation(self, cells: Mapping[str, str]) -> None:
        """Print a row of the table of validations, with the time since the start of the log."""
        cells = {**cells, "time": console.clock(time.monotonic() - self._started)}
        header, row = console.table_lines(cells)
        if header != self._header:
            self.print(header)
        self._header, self._shown = header, time.monotonic()
        self.print(row)

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
        write_text(path, "".join(f"{line}\n" for line in sorted({*known, *found})))
        self.print(console.unreadable(title, sorted(found - self._listed), path))
        self._listed |= found

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """Show a text in place of "steps" on the progress bar."""
        self._progress.update(self._bar, description=text)
        yield
        self._progress.update(self._bar, description="steps")

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

    Non-finite numbers, null in the file, become NaN. An incomplete last line is left out.

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
    """Remove cut lines and those of later steps from a log; return the others."""
    if not path.is_file():
        return []
    entries = [_parse(line) for line in path.read_text("utf-8", errors="replace").split("\n")]
    kept = [entry for entry in entries if entry and entry["step"] <= first_step]
    write_text(path, "".join(f"{_to_json(entry)}\n" for entry in kept))
    return kept


def _parse(line: str) -> dict[str, Any] | None:
    """A log line; None if it is cut or not a log line."""
    try:
        entry = json.loads(line)
        entry = {key: math.nan if value is None else value for key, value in entry.items()}
        return entry if {"step", "time"} <= entry.keys() else None
    except (ValueError, AttributeError):
        return None


def _to_json(entry: dict[str, Any]) -> str:
    """Strict JSON, with null for NaN and infinities."""
    finite = {key: value if math.isfinite(value) else None for key, value in entry.items()}
    return json.dumps(finite, allow_nan=False)


def _numbers(entry: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in entry.items() if key not in ("step", "time")}
