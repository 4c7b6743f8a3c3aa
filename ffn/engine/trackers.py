"""Where else a run's numbers go, under the keys of ``log.jsonl``: TensorBoard and wandb.

Both continue what they hold when a run continues from a step before the last one they saw: the
curves neither double back nor lose a point.
"""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

# wandb numbers the rows of a run; each record is a row of its own, up to ten in one step.
ROWS_PER_STEP = 10


class Tracker(Protocol):
    """Something that keeps a run's numbers."""

    def record(self, step: int, place: int, numbers: Mapping[str, float]) -> None:
        """Keep numbers by key; `place` counts the records of the step from 0."""

    def close(self, *, failed: bool) -> None:
        """Write the rest; `failed` says that the run ends with an error."""


class TensorBoardTracker:
    """Event files; ``tensorboard --logdir runs`` shows them.

    Args:
        folder: where they go.
        first_step: optimiser steps that are done; TensorBoard drops what it has of later ones.

    Raises:
        ImportError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "log.tensorboard needs TensorBoard: pip install 'frame-flexible[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def record(self, step: int, place: int, numbers: Mapping[str, float]) -> None:
        """Keep numbers by key; they are in the file when this returns."""
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """A run of wandb.

    wandb takes rows in ascending order only, and drops the others with a warning each. The rows
    are numbered by step and place, so that those of a step are the same ones whenever it is made,
    and those that a continued run makes again are not sent. ``step`` is the x axis of all charts.

    Args:
        run: what ``wandb.init`` returns.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")

    def record(self, step: int, place: int, numbers: Mapping[str, float]) -> None:
        """Send numbers by key, unless the run has this row."""
        row = ROWS_PER_STEP * step + place
        if row >= self._run.starting_step:
            self._run.log({"step": step, **numbers}, step=row, commit=True)

    def close(self, *, failed: bool) -> None:
        """Wait until all is sent."""
        self._run.finish(exit_code=int(failed))


def start_wandb(
    folder: Path, first_step: int, mode: str, project: str, config: dict[str, Any]
) -> WandbTracker:
    """Start a run of wandb, or go on with the one that ``folder/wandb_id`` names.

    Offline, each part of a continued run has its folder in ``folder/wandb``, with the same id and
    marked as one that resumes, by which ``wandb sync`` knows that they are one run.

    Args:
        folder: the run's folder.
        first_step: optimiser steps that are done; from 0 on it is a new run.
        mode: "auto" (online with an account configured, else offline), "online" or "offline".
        project: wandb project.
        config: shown in wandb.
    """
    if mode == "auto":
        mode = "online" if _has_wandb_account() else "offline"
    import wandb

    identity = folder / "wandb_id"
    if first_step == 0 or not identity.is_file():
        identity.write_text(secrets.token_hex(4))
    run = wandb.init(
        project=project,
        id=identity.read_text().strip(),
        resume="allow",
        dir=str(folder),
        mode=mode,
        config=config,
        settings=wandb.Settings(silent=mode == "offline", console="off"),
    )
    return WandbTracker(run)


def _has_wandb_account() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = netrc.netrc().hosts
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
    return any("wandb" in host for host in hosts)
