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
from ffn.engine.distributed import ReplicaError, World, processes
from ffn.engine.signals import EXIT_STOPPED, StoppedError
from ffn.files import explain
from ffn.host_memory import tune_allocator
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
    dist.DistError,  # at the rendezvous
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
        if world.size > 1 and _is_lost_process(error):
            raise _lost_process(error) from error
        raise


def _lost_process(error: RuntimeError) -> LostProcessError:
    cause = str(error).partition("\n")[0][:200]
    return LostProcessError(
        "another process of the run has ended or did not answer; see its message, or "
        f"torchrun's ({cause})"
    )


def _is_lost_process(error: RuntimeError) -> bool:
    from_backend = "gloo" in str(error) or "NCCL" in str(error)
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and from_backend)


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
        device: of the processes, see :func:`ffn.engine.distributed.processes`.

    Returns:
        The exit status: 0, `EXIT_FAILED`, or `EXIT_STOPPED` for a run that a signal has stopped.
    """
    world = None
    try:
        with processes(2 * data_timeout or UNLIMITED, device) as world:
            if world.device.type == "cpu":
                tune_allocator()
            try:
                _call(function, world)
            except BaseException as error:
                _report(program, error, world)  # before other processes can notice the failure
                raise
    except StoppedError:
        return _end(EXIT_STOPPED)
    except BrokenPipeError:  # of the console: the caller ends the program
        if not _in_group():
            raise
        return _end(EXIT_FAILED)
    except REPORTED as error:
        if world is None:
            print(f"{program}: {explain(error)}", file=sys.stderr)
        return _end(EXIT_FAILED)
    except BaseException as error:
        if not _in_group():
            raise
        if isinstance(error, KeyboardInterrupt):
            return _end(128 + signal.SIGINT)
        sys.excepthook(*sys.exc_info())
        return _end(1)
    return 0


def _call(function: Callable[[World], None], world: World) -> None:
    try:
        function(world)
    except RuntimeError as error:
        if world.size > 1 and not isinstance(error, REPORTED) and _is_lost_process(error):
            raise _lost_process(error) from error
        raise


def _report(program: str, error: BaseException, world: World) -> None:
    """Print an error's message, unless another process has printed it or its cause."""
    if isinstance(error, StoppedError):
        if world.is_main:
            print(f"{program}: {error}; the same command resumes the run", file=sys.stderr)
    elif isinstance(error, BrokenPipeError):
        return
    elif _is_first(error, world) and isinstance(error, REPORTED):
        process = f", process {world.rank}" if world.size > 1 else ""
        if is_raised_in_extension(error):  # the message alone does not name the line
            traceback.print_exception(error)
        print(f"{program}{process}: {explain(error)}", file=sys.stderr)


def _is_first(error: BaseException, world: World) -> bool:
    if world.store is None:
        return True
    try:
        failures = world.store.add("failures", 1)
        if isinstance(error, LostProcessError):
            return failures == 1
        return world.store.add(f"failure: {error}", 1) == 1
    except dist.DistError:  # torchrun has ended
        return True


def _end(status: int) -> int:
    """Return the status, or exit with it at once if the process group cannot be destroyed."""
    if _in_group():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    # At exit, Python ends the workers that are left; torch's handler would raise an error for each.
    atexit.register(signal.signal, signal.SIGCHLD, signal.SIG_DFL)
    return status


def _in_group() -> bool:
    return dist.is_initialized()
