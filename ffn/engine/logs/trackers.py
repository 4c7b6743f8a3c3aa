"""Write a run's numbers to TensorBoard and wandb, with the keys of ``log.jsonl``."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
    the lines that a resumed run writes again are not sent again.

    Args:
        folder: the run's folder.
        first_step: optimizer steps done; 0 starts a new run.
        mode: "online" or "offline".
        project: wandb project.
        config: displayed in wandb.
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
