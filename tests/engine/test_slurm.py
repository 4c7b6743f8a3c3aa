"""The batch script of tools/slurm, with replacements for the commands of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_toys import ROOT, finish, options, wait_for_step

SCRIPT = ROOT / "tools/slurm/train.sbatch"
COMMANDS = {
    "srun": 'shift; exec "$@"',  # one node; drops --kill-on-bad-exit
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$CALLS"; fi',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}


@pytest.mark.slow
def test_job_is_requeued_and_continues(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in COMMANDS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    job_of = {
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
    more = ("train.batch_size=2", "train.epochs=3", "data.workers=1")
    config = str(Path(__file__).with_name("empty.yaml"))

    def submit(**environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(SCRIPT), config, *options(videos, tmp_path / "run", *more)],
            cwd=ROOT,
            env={**os.environ, **job_of, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    job = submit()
    wait_for_step(tmp_path / "run", 3, job)
    job.send_signal(signal.SIGUSR1)
    out, err = job.communicate(timeout=120)
    assert job.returncode != 0
    assert "stopped on request; requeued" in out, err
    assert (tmp_path / "calls").read_text() == "requeue 7\n"

    out, _ = finish(submit(SLURM_RESTART_COUNT="1"))
    assert "resumed after" in out
    assert (tmp_path / "calls").read_text() == "requeue 7\n"  # not requeued again
