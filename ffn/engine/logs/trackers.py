"""Write a run's numbers to TensorBoard and wandb, with the keys of ``log.jsonl``.

When a run resumes from a step before the last one written, both replace the later points.
"""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

# Each record is one row in wandb; a step has up to ten.
ROWS_PER_STEP = 10


class Tracker(Protocol):
    """Interface of a tracker."""

    def record(self, step: int, position: int, numbers: Mapping[str, float]) -> None:
        """Write numbers by key; `position` counts the records of the step from 0."""

    def close(self, *, failed: bool) -> None:
        """Flush and close; `failed` is true if the run ends with an error."""


class TensorBoardTracker:
    """Writes event files; ``tensorboard --logdir runs`` displays them.

    Args:
        folder: for the files.
        first_step: optimizer steps done; TensorBoard discards points of later steps.

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

    def record(self, step: int, position: int, numbers: Mapping[str, float]) -> None:
        """Write numbers by key and flush the file."""
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """Writes to a run of wandb.

    wandb accepts rows in ascending order only. Row numbers are computed from step and position, so
    that a resumed run gives a repeated step the same rows, which are not sent again. ``step`` is
    the x axis of all charts.

    Args:
        run: as ``wandb.init`` returned it.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")

    def record(self, step: int, position: int, numbers: Mapping[str, float]) -> None:
        """Send numbers by key, unless the run has this row already."""
        row = ROWS_PER_STEP * step + position
        if row >= self._run.starting_step:
            self._run.log({"step": step, **numbers}, step=row, commit=True)

    def close(self, *, failed: bool) -> None:
        """Wait until everything is sent."""
        self._run.finish(exit_code=int(failed))


def start_wandb(
    folder: Path, first_step: int, mode: str, project: str, config: dict[str, Any]
) -> WandbTracker:
    """Start a run of wandb, or resume the one whose id is in ``folder/wandb_id``.

    Offline, each part of a resumed run has its folder in ``folder/wandb``, with the same id, so
    that ``wandb sync`` joins them.

    Args:
        folder: the run's folder.
        first_step: optimizer steps done; 0 starts a new run.
        mode: "auto" (online with an account configured, else offline), "online" or "offline".
        project: wandb project.
        config: displayed in wandb.
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
