"""The processes of a command: failures of one end all, with the cause and the remedy once."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ffn.data import watching
from ffn.data.workers import kill_workers
from ffn.engine.distributed import LostProcessError, World, cleanup, init_distributed
from ffn.files import explain, is_for_users
from ffn.registry import is_raised_in_extension

EXIT_FAILED = 2
UNLIMITED = 30 * 86400.0  # seconds
TRAINING_REMEDY = (
    "raise train.grad_accum_steps, set train.views=sequential or "
    "train.activation_checkpointing=true, or lower train.batch_size"
)


class OutOfMemoryError(RuntimeError):
    """A batch does not fit into memory."""


def explain_failure(error: BaseException, world: World, remedy: str) -> BaseException:
    """The error to report in place of one of torch, with its cause and the remedy; or itself.

    ``remedy`` says how to reduce the memory of a batch.
    """
    cause = str(error).partition("\n")[0][:200]
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return OutOfMemoryError(f"a batch needs more memory than there is: {remedy} ({cause})")
    from_backend = type(error) is RuntimeError and ("gloo" in str(error) or "NCCL" in str(error))
    if world.size > 1 and (from_backend or isinstance(error, dist.DistError)):
        return LostProcessError(
            "another process of the run has ended or did not answer; see its message, or "
            f"torchrun's ({cause})"
        )
    return error


@contextmanager
def processes(
    program: str,
    *,
    data_timeout: float = 0.0,
    device: torch.device | None = None,
    remedy: str = TRAINING_REMEDY,
) -> Iterator[World]:
    """Join the processes of a command; if one fails, print the cause once and end all.

    Args:
        program: name of the command, for messages.
        data_timeout: seconds that a process may wait for its data; 0 is without limit.
        device: of the processes, see :func:`ffn.engine.distributed.init_distributed`.
        remedy: how to reduce the memory of a batch.

    Yields:
        The processes. If this is the only one, errors are those of the code inside; else the
        process exits: with `EXIT_FAILED` for an error with a message for the user, else 1.
    """
    world = init_distributed(2 * data_timeout or UNLIMITED, device)
    others = multiprocessing.active_children()
    try:
        with watching():
            yield world
    except BaseException as raised:
        kill_workers(but=others)
        error = explain_failure(raised, world, remedy)
        if world.size == 1:
            if error is raised:
                raise
            raise error from raised
        if _is_first(error, world):
            if not is_for_users(error) or is_raised_in_extension(error):
                traceback.print_exc()
            print(f"{program}, process {world.rank}: {explain(error)}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # Destroying an NCCL group waits for collectives that may never complete after a failure.
        os._exit(getattr(error, "exit_status", EXIT_FAILED) if is_for_users(error) else 1)
    cleanup()


def _is_first(error: BaseException, world: World) -> bool:
    """Whether no other process has printed this error, or the cause of a lost process."""
    if world.store is None:
        return True
    failures = world.store.add("failures", 1)
    is_new = world.store.add(f"failure: {error}", 1) == 1
    return is_new and not (isinstance(error, LostProcessError) and failures > 1)
