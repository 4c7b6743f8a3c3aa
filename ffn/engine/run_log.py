"""Log of a run: console, progress bar, ``log.jsonl``, TensorBoard and wandb.

The last three have the same numbers under the same keys, ``train/loss``, ``val/top1/8``, …;
docs/training.md lists them. Only the main process logs.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ffn.engine.distributed import World
from ffn.engine.signals import StoppedError
from ffn.files import naming, printable, write_text

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
        wandb, project, config: mode, project and description of the run in wandb.
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
        wandb: str,
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
            path = folder / "log.jsonl"
            kept = path.read_text("utf-8").split("\n")[:lines] if path.is_file() else []
            write_text(path, "".join(f"{line}\n" for line in kept))
            self._file = path.open("a")
            if tensorboard:
                self._trackers.append(TensorBoardTracker(folder / "tensorboard", first_step))
            if wandb != "disabled":
                self._trackers.append(WandbTracker(folder, first_step, wandb, project, config))
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        """Add unreadable videos to ``unreadable.txt``; print a title and the first ten new ones."""
        if not self.active or not reasons:
            return
        path = self._folder / "unreadable.txt"
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


class TensorBoardTracker:
    """Writes event files; ``tensorboard --logdir runs`` displays them.

    TensorBoard discards points of steps after ``first_step``, the steps done.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "log.tensorboard needs TensorBoard: pip install 'frame-flexible[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def record(self, step: int, row: int, numbers: Mapping[str, float]) -> None:
        """Write numbers by key and flush the file."""
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """Writes to a run of wandb; a resumed run continues that whose id is in ``folder/wandb_id``.

    ``step`` is the x axis of all charts. wandb's own counter is the line of ``log.jsonl``, so that
    the lines that a resumed run writes again are not sent again. A run without steps done,
    ``first_step``, is a new one.
    """

    def __init__(
        self, folder: Path, first_step: int, mode: str, project: str, config: dict[str, Any]
    ) -> None:
        import wandb

        identity = folder / "wandb_id"
        if first_step == 0 or not identity.is_file():
            identity.write_text(secrets.token_hex(4))
        self._run = wandb.init(
            project=project,
            id=identity.read_text().strip(),
            resume="allow",
            dir=str(folder),
            mode=mode,
            config=config,
            settings=wandb.Settings(silent=mode == "offline", console="off"),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def record(self, step: int, row: int, numbers: Mapping[str, float]) -> None:
        """Send numbers by key, unless the run has this row already."""
        if row >= self._run.starting_step:
            self._run.log({"step": step, **numbers}, step=row, commit=True)

    def close(self, *, failed: bool) -> None:
        """Wait until everything is sent."""
        self._run.finish(exit_code=int(failed))
