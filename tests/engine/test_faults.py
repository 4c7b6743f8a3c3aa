"""Runs that are killed or fail at any place: started again, they end with identical results."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from engine_toys import (
    MIXED,
    TWO_PROCESSES,
    launch,
    log_lines,
    options,
    read_log,
    wait_for_step,
)
from forked import children
from torch.utils._pytree import tree_leaves

from ffn.engine.checkpoints import load_checkpoint

pytestmark = pytest.mark.slow

SMALL_STEPS = ("train.batch_size=4", "train.save_steps=1")  # 6 steps per epoch
UNIFORMER = ("model.name=uniformer_tiny", "optim.name=adamw", "optim.lr=1e-3")
AVERAGE = (*MIXED, "train.ema_decay=0.9")
STEP = "ffn.engine.train_step:TrainStep", "_backward"
PLACES = (STEP, ("ffn.engine.checkpointer", "save_step"), ("ffn.engine.loop", "evaluate"))


def end_of(folder: Path) -> list[Any]:
    """Weights, optimizer, statistics and position of the last checkpoint, as plain values."""
    content = load_checkpoint(folder / "last.pt")
    content["meta"].pop("config")  # has the name of the folder
    return [one.tolist() if torch.is_tensor(one) else one for one in tree_leaves(content)]


def log_of(folder: Path) -> list[dict[str, Any]]:
    changing = ("time", "videos_per_s", "data_wait", "memory_mib")
    lines = log_lines(folder)
    return [{k: v for k, v in line.items() if not k.endswith(changing)} for line in lines]


@pytest.mark.parametrize(("model", "world"), [((), 1), (UNIFORMER, 1), (AVERAGE, 2)])
def test_killed_at_random_moments(
    videos: Path, tmp_path: Path, model: tuple[str, ...], world: int
) -> None:
    """In steps, saves and validations, five times per run, drawn anew in every run of the test."""
    more = (*SMALL_STEPS, *model, "train.epochs=4", "data.workers=1")
    output, run = tmp_path / "output", tmp_path / "run"
    assert forked.train(options(videos, tmp_path / "whole", *more), world=world) == [0] * world
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of the kills: {seed}")
    draw = random.Random(seed)

    for turn in range(5):
        (owner, name), after = PLACES[turn % 3], draw.uniform(0, 0.05)
        rank, nth = draw.randrange(world) if turn % 3 != 1 else 0, draw.randint(1, 3 - turn % 3)
        prepare = partial(forked.kill, rank=rank, owner=owner, name=name, nth=nth, after=after)
        status = forked.train(
            options(videos, run, *more), world=world, output=output, prepare=prepare
        )
        if status == [0] * world:
            break
        assert -signal.SIGKILL in status, output.read_text()
    assert forked.train(options(videos, run, *more), world=world, output=output) == [0] * world

    assert turn >= 2
    assert end_of(run) == end_of(tmp_path / "whole")
    assert log_of(run) == log_of(tmp_path / "whole")
    assert not list(run.rglob(".*.part*"))
    training = load_checkpoint(run / "last.pt")["training"]
    for kind in ("buffers", "average_buffers") if model == AVERAGE else ("buffers",):
        for buffers in zip(*training[kind], strict=True):  # averaged at the end of an epoch
            assert all(torch.equal(buffer, buffers[0]) for buffer in buffers)


def test_torchrun_starts_killed_processes_again(videos: Path, tmp_path: Path) -> None:
    more = (*SMALL_STEPS, "train.epochs=6")
    assert forked.train(options(videos, tmp_path / "whole", *more), world=2) == [0, 0]
    torchrun = (*TWO_PROCESSES, "--max-restarts", "2")
    run = launch(videos, tmp_path / "run", *more, torchrun=torchrun)
    log = tmp_path / "run/log.jsonl"
    for turn in range(2):
        known = len(log.read_text().splitlines()) if turn else 0
        started = time.monotonic()
        while not log.is_file() or len(log.read_text().splitlines()) <= known + 1:
            assert time.monotonic() < started + 60  # started again, and training
            time.sleep(0.01)
        os.kill(children(run.pid)[turn], signal.SIGKILL)
    out, err = run.communicate(timeout=300)

    assert run.returncode == 0, err
    assert len(re.findall(r"per step = 2 process", out)) == 3
    assert "connectFullMesh" not in err  # no process connects to one that has ended
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def test_two_nodes_restart_together(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launchers with one process each, as on two machines; one process is killed."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    more = (*SMALL_STEPS, "train.epochs=6")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    shared = ("--nnodes", "2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "1")
    torchrun = (*shared, "--rdzv-endpoint", where)
    nodes = [launch(videos, tmp_path / "run", *more, torchrun=torchrun) for _ in range(2)]
    wait_for_step(tmp_path / "run", 4, nodes[0])
    os.kill(children(nodes[1].pid)[0], signal.SIGKILL)
    outputs = [node.communicate(timeout=300) for node in nodes]

    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert "resumed after" in outputs[0][0] + outputs[1][0]
    assert forked.train(options(videos, tmp_path / "whole", *more), world=2) == [0, 0]
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def hang(own: int, rank: int) -> None:
    def sleep(*_: Any) -> None:
        if own == rank:
            time.sleep(600)

    forked.before_each_call("ffn.data:VideoDataset", "_open_file", sleep)


def test_killed_and_hanging_workers_end_the_run_with_one_message(
    videos: Path, tmp_path: Path
) -> None:
    """By the process with the worker; the other one ends too."""
    kill = partial(forked.kill, rank=1, owner=STEP[0], name=STEP[1], nth=2, after=0, worker=True)
    for number, (prepare, message) in enumerate(
        (
            (partial(hang, rank=0), r"process 0: a loader worker failed \(timed out after 3"),
            (kill, r"process 1: a loader worker failed \("),
        )
    ):
        output, run = tmp_path / f"output{number}", tmp_path / str(number)
        given = options(videos, run, "data.workers=1", "data.timeout=3", "train.epochs=50")
        assert forked.train(given, world=2, output=output, prepare=prepare) == [2, 2]
        text = output.read_text()
        assert re.search(message, text)
        assert len(re.findall("ffn train, process", text)) == 1
        assert "Traceback" not in text


@pytest.mark.parametrize("torchrun", [(), TWO_PROCESSES], ids=["alone", "two"])
def test_stopped_workers_end_the_run(
    videos: Path, tmp_path: Path, torchrun: tuple[str, ...]
) -> None:
    """Also if their next batches were announced, whose tensors the process fetches from them."""
    given = "data.workers=2", "data.timeout=3", "train.epochs=500"
    run = launch(videos, tmp_path / "run", *given, torchrun=torchrun)
    wait_for_step(tmp_path / "run", 2, run)
    workers = children(children(run.pid)[0] if torchrun else run.pid)
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    err = run.communicate(timeout=60)[1]

    assert run.returncode == (1 if torchrun else 2)
    assert "a loader worker failed (timed out after 3" in err
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def poison(own: int, rank: int, step: int) -> None:
    def spoil(self: Any, batch: dict[str, Any], *, number: int, **_: Any) -> None:
        if own == rank and number == step:
            normalize = self.normalize
            self.normalize = lambda clip: normalize(clip) * float("nan")

    forked.before_each_call(*STEP, spoil)


def test_bad_steps_of_one_process_are_skipped_by_all(videos: Path, tmp_path: Path) -> None:
    """The second step is the first bad one; the tenth of them ends the run."""
    given = options(videos, tmp_path / "run", "train.save_steps=1", "train.epochs=9")
    prepare = partial(poison, rank=1, step=1)
    output = tmp_path / "output"
    assert forked.train(given, world=2, output=output, prepare=prepare) == [2, 2]

    assert output.read_text().count("the loss is not finite at step 2: step skipped") == 1
    assert [e["bad_steps"] for e in read_log(tmp_path / "run")] == [0, *[1] * 9]
    assert len(load_checkpoint(tmp_path / "run/last.pt")["training"]["buffers"]) == 2
