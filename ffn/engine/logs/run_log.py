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
from ffn.engine.logs.trackers import TensorBoardTracker, WandbTracker
from ffn.engine.signals import StoppedError
from ffn.files import naming, printable, write_text

NAME = "log.jsonl"
UNREADABLE = "unreadable.txt"
SHOWN_EVERY = 60.0  # seconds between lines about the progress, where there is no bar


class RunLog:
    """Writes a run's numbers to the console, ``log.jsonl``, TensorBoard and wandb.

    A context manager. A terminal shows a progress bar; other outputs get a line each minute.

    Args:
        folder: the run's folder.
        world: the processes; the log of all but the main one does nothing.
        first_step: optimizer steps done.
        lines: lines of the log to keep; a resumed run writes later ones again.
        total_steps: optimizer steps of the run, for the progress bar.
        wandb_mode: "disabled", "online" or "offline".
        project: wandb project.
        config: shown in wandb.
        tensorboard: whether to write event files into ``folder/tensorboard``.

    Attributes:
        lines: lines of the log so far.

    Raises:
        ImportError: TensorBoard is requested and not installed.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        *,
        first_step: int,
        lines: int,
        total_steps: int,
        wandb_mode: str,
        project: str,
        config: dict[str, Any],
        tensorboard: bool = False,
    ) -> None:
        self.active, self.lines, self._folder = world.is_main, lines, folder
        logging.getLogger().setLevel(logging.INFO if self.active else logging.WARNING)
        self.console = Console(quiet=not self.active, highlight=False, markup=False, soft_wrap=True)
        self._shown = time.monotonic()
        self._trackers: list[TensorBoardTracker | WandbTracker] = []
        if self.active:
            path = folder / NAME
            kept = path.read_text("utf-8").split("\n")[:lines] if path.is_file() else []
            write_text(path, "".join(f"{line}\n" for line in kept))
            self._file = path.open("a")
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

    def print(self, *lines: str) -> None:
        """Print lines on the console."""
        for line in lines:
            self.console.print(printable(line))

    def progress(self, step: int, text: str) -> None:
        """Move the progress bar; without a terminal, print the text once a minute."""
        self._progress.update(self._bar, completed=step, text=text)
        now = time.monotonic()
        if self._progress.disable and text and now - self._shown >= SHOWN_EVERY:
            self._shown = now
            self.print(f"  step {step}  {text}")

    def unreadable(self, title: str, reasons: Sequence[str]) -> None:
        """Add unreadable videos to ``unreadable.txt``, and print the first ten new ones.

        Args:
            title: about these videos.
            reasons: one line per video.
        """
        if not self.active or not reasons:
            return
        path = self._folder / UNREADABLE
        known = path.read_text("utf-8", "surrogateescape").splitlines() if path.is_file() else []
        new = sorted({" ".join(reason.split()) for reason in reasons} - {*known})
        write_text(path, "".join(f"{line}\n" for line in [*known, *new]))
        more = [f"  ... and {len(new) - 10} more, see {path}"] if len(new) > 10 else []
        self.print(title, *(f"  {line}" for line in new[:10]), *more)

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
            step: optimizer steps done.
            values: numbers by key, ``{"loss": 1.2, "top1/8": 34.0}``.
        """
        if not self.active:
            return
        numbers = {f"{kind}/{key}": value for key, value in values.items()}
        finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        line = {"step": step, "time": round(time.time(), 3), **finite}
        with naming(Path(self._file.name)):
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        for tracker in self._trackers:
            tracker.record(step, self.lines, numbers)
        self.lines += 1


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
    *lines, _ = path.read_text("utf-8").split("\n")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            entry = {key: math.nan if value is None else value for key, value in entry.items()}
            entries.append({"step": entry.pop("step"), "time": entry.pop("time"), **entry})
        except (ValueError, AttributeError, KeyError) as error:
            raise ValueError(f"{path}, line {number} is not a line of a training log") from error
    return entries
