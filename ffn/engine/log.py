"""What a run shows and keeps: a progress bar, one line per interval, JSON lines and wandb.

All three hold the same keys. Only the main process speaks; the others stay silent below warnings.
"""

from __future__ import annotations

import json
import logging
import netrc
import os
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ffn.engine.distributed import World


class RunLog:
    """Writes a run's numbers to the console, ``log.jsonl`` and wandb; a context manager.

    Args:
        folder: the run's folder.
        world: the processes; all but the main one get a log that does nothing.
        first_step: optimiser steps that are done; what ``log.jsonl`` holds of later ones is
            dropped, because a continued run makes and writes them again.
        total_steps: optimiser steps of the run, for the progress bar.
        wandb_mode: "auto", "online", "offline" or "disabled".
        project: wandb project.
        config: shown in wandb.
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
    ) -> None:
        self.active = world.is_main
        logging.getLogger().setLevel(logging.INFO if self.active else logging.WARNING)
        self.console = Console(quiet=not self.active, highlight=False, soft_wrap=True)
        self._file = _open_lines(folder / "log.jsonl", first_step) if self.active else None
        self._wandb = _start_wandb(folder, wandb_mode, project, config) if self.active else None
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
        self._bar = self._progress.add_task("steps", total=total_steps, rate="")

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
        if self._file is not None:
            self._file.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)

    def say(self, text: str) -> None:
        """Print a line."""
        self._progress.console.print(text)

    def step(self, step: int, rate: str) -> None:
        """Move the progress bar."""
        self._progress.update(self._bar, completed=step, rate=rate)

    def record(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Keep numbers under their keys, with the step they belong to."""
        if self._file is not None:
            entry = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        if self._wandb is not None:
            self._wandb.log({f"{kind}/{key}": value for key, value in values.items()}, step=step)


def _open_lines(path: Path, first_step: int) -> TextIO:
    if first_step and path.is_file():
        lines = path.read_text().splitlines()
        kept = [line for line in lines if _is_done(line, first_step)]
        if len(kept) < len(lines):
            part = path.with_name(f".{path.name}.{os.getpid()}.part")
            part.write_text("".join(f"{line}\n" for line in kept))
            os.replace(part, path)
    return path.open("a")


def _is_done(line: str, first_step: int) -> bool:
    try:
        return json.loads(line)["step"] <= first_step
    except json.JSONDecodeError:  # cut off when the process died
        return False


def _start_wandb(folder: Path, mode: str, project: str, config: dict[str, Any]) -> Any:
    if mode == "disabled":
        return None
    if mode == "auto":
        mode = "online" if _has_wandb_account() else "offline"
    import wandb

    identity = folder / "wandb_id"  # a continued run goes on in wandb too
    if not identity.is_file():
        identity.write_text(secrets.token_hex(4))
    return wandb.init(
        project=project,
        id=identity.read_text().strip(),
        resume="allow" if mode == "online" else None,
        dir=str(folder),
        mode=mode,
        config=config,
        settings=wandb.Settings(silent=mode == "offline", console="off"),
    )


def _has_wandb_account() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc().hosts
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)
