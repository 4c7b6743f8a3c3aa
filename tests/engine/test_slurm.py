"""The batch script of tools/slurm, with replacements for the commands of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_toys import ROOT, options, wait_for_step

SCRIPT = ROOT / "tools/slurm/train.sbatch"
COMMANDS = {
    "srun": 'shift; exec "$@"',  # one node; drops --kill-on-bad-exit
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$CALLS"; fi',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a job."""
    (tmp_path / "bin").mkdir()
    for name, body in COMMANDS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_GPUS_ON_NODE": "2",
        "PORT": str(20000 + os.getpid() % 20000),
    }


def submit(environment: dict[str, str], arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        ["bash", str(SCRIPT), *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_job_is_requeued_and_continues(videos: Path, tmp_path: Path, slurm: dict[str, str]) -> None:
    more = ("train.batch_size=2", "train.epochs=3", "data.workers=1")
    (tmp_path / "empty.yaml").write_text("{}\n")
    arguments = [str(tmp_path / "empty.yaml"), *options(videos, tmp_path / "run", *more)]
    job = submit(slurm, arguments)
    wait_for_step(tmp_path / "run", 3, job)
    job.send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "stopped on request; requeued" in out, err
    assert (tmp_path / "calls").read_text() == "requeue 7\n"

    job = submit({**slurm, "SLURM_RESTART_COUNT": "1"}, arguments)
    out, err = job.communicate(timeout=300)

    assert job.returncode == 0, err
    assert "resumed after" in out
    assert (tmp_path / "calls").read_text() == "requeue 7\n"  # not requeued again
