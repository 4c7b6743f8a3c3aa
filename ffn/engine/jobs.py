"""Run jobs in subprocesses, several at a time; stop all of them on a signal or a failure.

A job is a list of commands that run one after another, each in a process of its own. Trainings stop
on SIGTERM after a checkpoint, so the same jobs continue later.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from ffn.devices import usable_cores
from ffn.engine.signals import StoppedError, StopRequest

POLL = 0.1  # seconds


class JobError(RuntimeError):
    """A command of a job failed; the message has its last line of output."""


@dataclass(frozen=True)
class Job:
    """Commands that run one after another.

    Attributes:
        name: for messages.
        commands: programs with their arguments.
        log: file for the console output of all commands, which is appended.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path


@dataclass
class _Running:
    """A job in progress on one of the slots."""

    job: Job
    slot: int
    log: IO[bytes]
    started: float
    process: subprocess.Popen
    done: int = 1  # commands, with the one in progress


def run_jobs(
    jobs: Iterable[Job],
    *,
    parallel: int,
    stop: StopRequest,
    on_end: Callable[[Job, float], None],
) -> None:
    """Run jobs in their order, ``parallel`` at a time.

    Each process gets its share of the CPU threads, and one of the GPUs in turn. It has a session of
    its own: Ctrl-C reaches this process only, which passes it on as SIGTERM.

    Args:
        jobs: the jobs.
        parallel: jobs at a time, at least 1.
        stop: request of a signal to stop.
        on_end: called with each finished job and its duration in seconds.

    Raises:
        JobError: a command failed. All others are stopped.
        StoppedError: a signal was received. All processes have ended.
    """
    waiting, running, free = deque(jobs), [], deque(range(parallel))
    try:
        while waiting or running:
            if stop.requested:
                raise StoppedError("all trainings and tests are stopped")
            while waiting and free:
                running.append(_start(waiting.popleft(), free.popleft(), parallel))
            for one in [one for one in running if one.process.poll() is not None]:
                if one.process.returncode:
                    raise JobError(_failure(one))
                one.process.stdin.close()
                if one.done < len(one.job.commands):
                    one.process = _open(one.job.commands[one.done], one.slot, parallel, one.log)
                    one.done += 1
                else:
                    one.log.close()
                    running.remove(one)
                    free.append(one.slot)
                    on_end(one.job, time.monotonic() - one.started)
            time.sleep(POLL)
    finally:
        _end(running)


def job_environment(
    slot: int, parallel: int, before: Mapping[str, str], gpus: int
) -> dict[str, str]:
    """Environment of a job: its share of the CPU threads, and one GPU.

    Args:
        slot: number of the job among those that run at a time, from 0.
        parallel: jobs at a time.
        before: environment of this process; OMP_NUM_THREADS is kept if it is set.
        gpus: number of GPUs that this process sees.
    """
    environment = dict(before)
    if parallel > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // parallel)))
    if gpus > 1:
        visible = before.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[slot % gpus].strip()
    return environment


def _start(job: Job, slot: int, parallel: int) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = job.log.open("ab")
    process = _open(job.commands[0], slot, parallel, log)
    return _Running(job, slot, log, time.monotonic(), process)


def _open(command: Sequence[str], slot: int, parallel: int, log: IO[bytes]) -> subprocess.Popen:
    gpus = torch.cuda.device_count()  # does not initialize CUDA
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # see end_with_parent
        stdout=log,
        stderr=subprocess.STDOUT,
        env=job_environment(slot, parallel, os.environ, gpus),
        start_new_session=True,
    )


def _end(running: list[_Running]) -> None:
    """Stop all processes and wait for them."""
    for one in running:
        if one.process.poll() is None:
            one.process.terminate()
    for one in running:
        one.process.wait()
        one.process.stdin.close()
        one.log.close()


def _failure(one: _Running) -> str:
    lines = one.job.log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    status = one.process.returncode
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{one.job.name} ended with {how} (log: {one.job.log}): {last}"
