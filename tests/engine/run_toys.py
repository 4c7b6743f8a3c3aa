"""Run folders with small checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ffn.engine.checkpoints.folder import RunFolder


def content(step: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((1000,), float(step))},
        "meta": {"model": "tsm_tiny"},
        "training": {"step": step},
    }


def saved(folder: Path, *steps: int, keep: int = 3) -> RunFolder:
    """The folder of a run that has saved these steps and ended."""
    run = RunFolder(folder, keep)
    with run.lock():
        for step in steps:
            run.save(content(step), step)
    return RunFolder(folder, keep)


def files(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.name != ".lock")


def step_file(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step_{step:08d}.pt"


def damage(path: Path) -> bytes:
    """Flip a bit in a new file of this name; a hard link to the old one stays valid."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.unlink()
    path.write_bytes(whole)
    return bytes(whole)
