"""Runs that are killed at any place: started again, they end with identical results."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toys import launch, options, read_log, train, wait_for_step
from forked import Forks

from ffn.engine.checkpoints import load_checkpoint

SMALL_STEPS = ("train.batch_size=4", "train.save_steps=1")  # 6 steps per epoch
FAMILIES = {
    "tsm": (),
    "uniformer": ("model.name=uniformer_tiny", "optim.name=adamw", "optim.lr=1e-3"),
}


def digest(folder: Path) -> str:
    """SHA-256 of the last checkpoint: weights, optimizer, statistics, position."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                found.update(str(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        elif torch.is_tensor(value):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            found.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())

    content = load_checkpoint(folder / "last.pt")
    content["meta"].pop("config")  # has the name of the folder
    add(content)
    return found.hexdigest()


def log_of(folder: Path) -> list[dict[str, Any]]:
    changing = ("time", "videos_per_s", "data_wait", "memory_mib")
    lines = (json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.endswith(changing)} for line in lines]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as program:
        yield program


def killed_at(
    forks: Forks,
    root: Path,
    folder: Path,
    plan: list[dict[str, Any]],
    *more: str,
    world: int = 1,
    output: Path,
) -> list[str]:
    """Run, killed as planned at each attempt, until it ends; returns the places of the kills."""
    places = []
    for kill in [*plan, None]:
        found = forks.run(options(root, folder, *more), world=world, kill=kill, output=output)
        assert found["seconds"] < 60
        if found["status"] == [0] * world:
            return places
        within = kill["where"] in ("save", "validation") and not found["inside"]
        places.append("just after" if within else kill["where"])
        assert -signal.SIGKILL in found["status"] or kill["where"] == "worker", output.read_text()
    raise AssertionError(f"the run has not ended: {output.read_text()[-3000:]}")


def plans(number: int, *, world: int = 1) -> list[dict[str, Any]]:
    """Places and times of kills, drawn anew in every run of the tests; the seed is printed."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of the kills: {seed}")
    rng = random.Random(seed)
    slowest = {"anywhere": 2.0, "save": 0.012, "validation": 0.05, "worker": 0.05}
    found = []
    for turn in range(number):
        where = ("save", "anywhere", "validation", "save", "worker")[turn % 5]
        kill = {
            "where": where,
            "after": rng.uniform(0, slowest[where]),
            "rank": rng.randrange(world),
        }
        if where == "save":
            kill["rank"] = 0  # the only one that saves
        if where in ("save", "worker"):
            kill["nth"] = rng.randint(1, 3)
        found.append(kill)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("family", "world"), [("tsm", 1), ("uniformer", 1), ("tsm", 2)])
def test_killed_at_random_moments(
    forks: Forks, videos: Path, tmp_path: Path, family: str, world: int
) -> None:
    """Anywhere, inside a save, in a validation, in a loader worker; of one and two processes."""
    more = (*SMALL_STEPS, *FAMILIES[family], "train.epochs=4", "data.workers=1")
    whole = forks.run(options(videos, tmp_path / "whole", *more), world=world)
    assert whole["status"] == [0] * world
    output, run = tmp_path / "output", tmp_path / "run"

    places = killed_at(
        forks, videos, run, plans(15, world=world), *more, world=world, output=output
    )

    assert len(places) >= 5
    assert digest(run) == digest(tmp_path / "whole")
    assert log_of(run) == log_of(tmp_path / "whole")
    assert not list(run.rglob(".*.part*"))


def ranks_of(process: subprocess.Popen) -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in found]


@pytest.mark.slow
def test_torchrun_starts_killed_processes_again(videos: Path, tmp_path: Path) -> None:
    more = (*SMALL_STEPS, "train.epochs=6")
    whole = launch(videos, tmp_path / "whole", *more, processes=2)
    assert whole.wait(300) == 0
    run = launch(videos, tmp_path / "run", *more, processes=2, launcher=("--max-restarts", "5"))
    rng, log, kills = random.Random(0), tmp_path / "run/log.jsonl", 0
    for _ in range(3):
        known = len(log.read_text().splitlines()) if log.is_file() else 0
        started = time.monotonic()
        wait_for_step(tmp_path / "run", 1, run)
        while run.poll() is None and len(log.read_text().splitlines()) <= known + 1:
            assert time.monotonic() < started + 60  # restarted, and training
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        ranks = ranks_of(run)
        if run.poll() is None and len(ranks) == 2:
            os.kill(ranks[rng.randrange(2)], signal.SIGKILL)
            kills += 1
    out, err = run.communicate(timeout=300)

    assert run.returncode == 0, err
    assert kills >= 2
    assert len(re.findall(r"per step = 2 process", out)) == kills + 1  # one start per kill
    assert "connectFullMesh" not in err  # no process connects to one that has ended
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


@pytest.mark.slow
def test_killed_worker_is_named(forks: Forks, videos: Path, tmp_path: Path) -> None:
    more = (*SMALL_STEPS, "data.workers=2")
    rng, output = random.Random(1), tmp_path / "output"
    for _ in range(4):
        kill = {"where": "worker", "after": rng.uniform(0, 0.03), "rank": 0}
        found = forks.run(options(videos, tmp_path / "run", *more), kill=kill, output=output)
        assert found["seconds"] < 60
        if found["status"] == [0]:
            break  # killed at the end
        assert found["status"] == [2]
    lines = [line for line in output.read_text().splitlines() if line.startswith("ffn train: ")]
    assert lines
    assert all(re.search(r"a worker exited unexpectedly \(", line) for line in lines)
    assert "Traceback" not in output.read_text()
    forks.run(options(videos, tmp_path / "run", *more))
    assert digest(tmp_path / "run") == digest(train(videos, tmp_path / "whole", *more))
    assert read_log(tmp_path / "run")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_video_that_hangs_one_of_two_processes(
    forks: Forks, videos: Path, tmp_path: Path, rank: int
) -> None:
    """The process with the video names it; the other one ends too.

    Without torchrun's store, the other one has no information that a message is printed.
    """
    more = ("data.workers=1", "data.timeout=3")
    output, fault = tmp_path / "output", {"rank": rank, "hangs": ".mp4"}
    job = forks.run(options(videos, tmp_path / "run", *more), world=2, fault=fault, output=output)

    assert job["status"] == [2, 2]
    assert job["seconds"] < 60
    text = output.read_text()
    assert re.search(rf"process {rank}: no batch within 3 s; worker 0 has been reading ", text)
    others = re.findall(rf"ffn train, process {1 - rank}: (.*)", text)
    assert len(others) <= 1
    assert all("another process of the run has ended" in message for message in others)
    assert "Traceback" not in text


def test_bad_step_of_one_process_is_skipped_by_all(
    forks: Forks, videos: Path, tmp_path: Path
) -> None:
    more, output = ("train.save_steps=1", "train.epochs=1"), tmp_path / "output"
    job = forks.run(
        options(videos, tmp_path / "run", *more),
        world=2,
        fault={"rank": 1, "nan": [1]},
        output=output,
    )

    assert job["status"] == [0, 0]
    assert output.read_text().count("the loss is not finite at step 2: step skipped") == 1
    entries = read_log(tmp_path / "run")
    assert [e["bad_steps"] for e in entries] == [0, 1, 0, 0]
    assert len(load_checkpoint(tmp_path / "run/last.pt")["training"]["buffers"]) == 2


def test_full_disk_ends_the_run_and_keeps_its_checkpoints(
    forks: Forks, videos: Path, tmp_path: Path
) -> None:
    more, output = ("train.save_steps=1",), tmp_path / "output"
    job = forks.run(
        options(videos, tmp_path / "run", *more),
        fault={"rank": 0, "limit": 300_000, "step": 5},
        output=output,
    )

    assert job["status"] == [2]
    text = output.read_text()
    assert re.search(r"ffn train: .*step_00000006\.pt", text)
    assert "Traceback" not in text
    assert load_checkpoint(tmp_path / "run/last.pt")["training"]["step"] == 5
    assert not list((tmp_path / "run").rglob("*.part"))
    forks.run(options(videos, tmp_path / "run", *more))
    assert digest(tmp_path / "run") == digest(train(videos, tmp_path / "whole", *more))


@pytest.mark.slow
def test_second_run_in_a_folder_is_refused(videos: Path, tmp_path: Path) -> None:
    more = ("train.epochs=5000",)  # longer than the second one waits for the lock
    first = launch(videos, tmp_path / "run", *more)
    try:
        wait_for_step(tmp_path / "run", 2, first)
        second = launch(videos, tmp_path / "run", *more)
        _, err = second.communicate(timeout=60)
        assert second.returncode == 2
        assert "another run trains in" in err
        assert len(err.strip().splitlines()) == 1
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()


@pytest.mark.slow
def test_two_nodes_restart_together(videos: Path, tmp_path: Path) -> None:
    """Two launchers with one process each, as on two machines; one process is killed."""
    more = (*SMALL_STEPS, "train.epochs=6")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    shared = ("--nnodes", "2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "1")
    shared += ("--rdzv-endpoint", where)
    nodes = [
        launch(videos, tmp_path / "run", *more, processes=1, launcher=shared) for _ in range(2)
    ]
    wait_for_step(tmp_path / "run", 4, nodes[0])
    (rank,) = ranks_of(nodes[1])
    os.kill(rank, signal.SIGKILL)
    outputs = [node.communicate(timeout=300) for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "resumed after" in outputs[0][0] + outputs[1][0]
    whole = launch(videos, tmp_path / "whole", *more, processes=2)
    assert whole.wait(300) == 0
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
