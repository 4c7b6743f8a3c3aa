"""Turn failures of devices, processes and loader workers into errors that name the remedy."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ffn.data import LoaderError, VideoError, watching
from ffn.engine.distributed import ReplicaError, World, cleanup, init_distributed
from ffn.engine.signals import EXIT_STOPPED, StoppedError
from ffn.files import explain
from ffn.registry import is_raised_in_extension
from ffn.zoo import WeightsError

EXIT_FAILED = 2
UNLIMITED = 30 * 86400.0  # seconds
TRAINING_REMEDY = (
    "raise train.grad_accum_steps, set train.views=sequential or "
    "train.activation_checkpointing=true, or lower train.batch_size"
)


class OutOfMemoryError(RuntimeError):
    """A batch does not fit into memory."""


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or did not answer in time."""


# Errors whose message names the cause and the remedy: a command prints it without traceback.
REPORTED: tuple[type[Exception], ...] = (
    ValueError,
    OSError,
    FloatingPointError,
    ImportError,  # of an extra that is not installed
    dist.DistError,  # while the processes connect
    LoaderError,
    LostProcessError,
    OutOfMemoryError,
    ReplicaError,
    VideoError,
    WeightsError,
)


@contextmanager
def explain_failures(
    world: World, *loaders: DataLoader, batch_size: int, remedy: str = TRAINING_REMEDY
) -> Iterator[None]:
    """Replace torch's errors by errors that name the cause and the remedy.

    Args:
        world: the processes.
        loaders: those in use inside, so that the videos of a lost worker are named.
        batch_size: videos per forward on this process.
        remedy: how to reduce the memory of a batch.

    Raises:
        LoaderError: a worker of a data loader has ended.
        OutOfMemoryError: a batch does not fit into the memory of the device or the machine.
        LostProcessError: another process has ended, or did not answer in time.
    """
    try:
        with watching(*loaders):
            yield
    except RuntimeError as error:
        cause = str(error).partition("\n")[0][:200]
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise OutOfMemoryError(
                f"{batch_size} videos need more memory than there is: {remedy} ({cause})"
            ) from error
        lost = _lost_process(error, world)
        if lost is None:
            raise
        raise lost from error


def _lost_process(error: BaseException, world: World) -> LostProcessError | None:
    """The error to raise in place of one of gloo or NCCL about another process."""
    from_backend = type(error) is RuntimeError and ("gloo" in str(error) or "NCCL" in str(error))
    if world.size == 1 or not (from_backend or isinstance(error, dist.DistError)):
        return None
    cause = str(error).partition("\n")[0][:200]
    return LostProcessError(
        "another process of the run has ended or did not answer; see its message, or "
        f"torchrun's ({cause})"
    )


def run_command(
    program: str,
    function: Callable[[World], None],
    *,
    data_timeout: float = 0.0,
    device: torch.device | None = None,
) -> int:
    """Run a command in all its processes; if one fails, print the cause once and end all.

    Args:
        program: its name, for messages.
        function: takes the processes.
        data_timeout: seconds that a process may wait for its data; 0 is without limit.
        device: of the processes, see :func:`ffn.engine.distributed.init_distributed`.

    Returns:
        The exit status: 0, `EXIT_FAILED`, or `EXIT_STOPPED` for a run that a signal has stopped.
    """
    world, status = World(0, 1, torch.device("cpu")), 0
    try:
        world = init_distributed(2 * data_timeout or UNLIMITED, device)
        function(world)
    except StoppedError as error:
        status = EXIT_STOPPED
        if world.is_main:
            print(f"{program}: {error}; the same command resumes the run", file=sys.stderr)
    except REPORTED as error:
        if world.size == 1 and isinstance(error, BrokenPipeError):
            raise  # of the console: the caller ends the program
        status = EXIT_FAILED
        _report(program, error, world)
    except (Exception, KeyboardInterrupt) as error:
        if world.size == 1:
            raise
        lost = _lost_process(error, world)
        status = EXIT_FAILED if lost else 1
        if lost:
            _report(program, lost, world)
        else:
            traceback.print_exc()
    if status and dist.is_initialized():
        # Destroying an NCCL group waits for collectives that may never complete after a failure.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status:
        # At exit, Python ends the workers that are left; torch's handler would raise for each.
        atexit.register(signal.signal, signal.SIGCHLD, signal.SIG_DFL)
    cleanup()
    return status


def _report(program: str, error: Exception, world: World) -> None:
    """Print an error's message, unless another process has printed it or its cause."""
    if world.store is not None:
        failures = world.store.add("failures", 1)
        is_first = world.store.add(f"failure: {error}", 1) == 1
        if not is_first or (isinstance(error, LostProcessError) and failures > 1):
            return
    if is_raised_in_extension(error):  # the message alone does not name the line
        traceback.print_exception(error)
    process = f", process {world.rank}" if world.size > 1 else ""
    print(f"{program}{process}: {explain(error)}", file=sys.stderr)
