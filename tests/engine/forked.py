"""Many short runs, each in its own processes, forked from one that has imported everything.

As a program it reads jobs, one line of JSON each. It answers each with the exit statuses of the
processes and the duration. A job may kill its processes at a place.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INSIDE = multiprocessing.Value("b", 0, lock=False)  # whether a process is in the place to be killed
JOINED = multiprocessing.Array("b", 8, lock=False)  # by rank: whether it has joined the others


class Forks:
    """Sends jobs to the program; a context manager."""

    def __enter__(self) -> Forks:
        self._program = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._program.stdin.close()
        self._program.wait(60)

    def run(
        self,
        options: list[str],
        *,
        world: int = 1,
        kill: dict[str, Any] | None = None,
        order: Path | None = None,
        output: Path | None = None,
        double: bool = False,
        fault: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Train.

        Args:
            options: as on the command line.
            world: processes.
            kill: ``where`` ("anywhere", "save", "validation", "worker"), ``after`` seconds from
                there, and ``rank``.
            order: folder for the videos of every step, one file per process.
            output: file for what the processes print.
            double: train in float64.
            fault: of the process ``rank``: a video that ``hangs`` its decoder, ``nan`` in the clips
                of these steps, or no file longer than ``limit`` bytes after ``step`` steps.

        Returns:
            ``status`` of each process, negative if a signal ended it, ``seconds``, and whether one
            was killed ``inside`` the place.
        """
        job = {
            "options": options,
            "world": world,
            "kill": kill,
            "order": order and str(order),
            "output": str(output or os.devnull),
            "double": double,
            "fault": fault,
        }
        self._program.stdin.write(json.dumps(job) + "\n")
        self._program.stdin.flush()
        answer = self._program.stdout.readline()
        assert answer, "the program has ended"
        return json.loads(answer)


def main() -> None:
    """Answer jobs until there are no more."""
    import av  # noqa: F401
    import torch
    import torchvision.transforms.v2  # noqa: F401

    import ffn.engine.build
    import ffn.engine.loop
    import ffn.evaluation  # noqa: F401
    from ffn import backbones, data  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.monotonic()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [_fork(job, rank, port) for rank in range(job["world"])]
        kill = job["kill"] or {}
        if kill.get("where") == "anywhere":
            time.sleep(kill["after"])
            os.kill(children[kill["rank"]], signal.SIGKILL)
        status = _wait(children)
        inside = INSIDE.value == 1
        INSIDE.value = 0
        answer = {"status": status, "seconds": time.monotonic() - started, "inside": inside}
        print(json.dumps(answer), flush=True)


def _wait(children: list[int]) -> list[int]:
    """Exit statuses of the processes, by rank.

    A process that has joined the others must notice by itself that one of them has ended. If one
    ends before it has joined, the others are ended as ``torchrun`` does: torch waits for it in the
    rendezvous for up to twice the timeout of half an hour.
    """
    status: dict[int, int] = {}
    while len(status) < len(children):
        child, found = os.waitpid(-1, 0)
        rank = children.index(child)
        status[rank] = os.waitstatus_to_exitcode(found)
        if not JOINED[rank]:
            for other in set(range(len(children))) - set(status):
                os.kill(children[other], signal.SIGTERM)
    JOINED[:] = [0] * len(JOINED)
    return [status[rank] for rank in range(len(children))]


def _fork(job: dict[str, Any], rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        where = {"RANK": rank, "WORLD_SIZE": job["world"], "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in where.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        status = _train(job, rank)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _train(job: dict[str, Any], rank: int) -> int:
    import torch.distributed as dist

    from ffn.cli import main

    join = dist.init_process_group

    def joining(*given: Any, **more: Any) -> None:
        join(*given, **more)
        JOINED[rank] = 1

    dist.init_process_group = joining
    if job["order"]:
        _record_order(Path(job["order"]) / f"{rank}.jsonl")
    if job["double"]:
        _compute_in_float64()
    fault = job["fault"]
    if fault and fault.pop("rank") == rank:
        _inject(**fault)
    kill = job["kill"]
    if kill and kill["rank"] == rank:
        _arm(**kill)
    empty = ROOT / "tests/engine/empty.yaml"
    return main(["train", str(empty), *job["options"]])


def _record_order(path: Path) -> None:
    from ffn.engine.train_step import TrainStep

    backward = TrainStep._backward

    def recording(self: Any, batch: dict[str, Any], *, number: int, **more: Any) -> dict[str, Any]:
        line = {"step": number, "index": batch["index"].tolist(), "world": self.world.size}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return backward(self, batch, number=number, **more)

    TrainStep._backward = recording


def _compute_in_float64() -> None:
    from ffn.engine import build_network, train_step, validation

    build_model, to_device = build_network.build_model, train_step.to_device

    def doubled(batch: dict[str, Any], *more: Any) -> dict[str, Any]:
        batch = to_device(batch, *more)
        return {**batch, "clips": {t: clip.double() for t, clip in batch["clips"].items()}}

    build_network.build_model = lambda *given, **more: build_model(*given, **more).double()
    train_step.to_device = doubled
    nothing = {"top1": 0.0, "failed": 0}  # validation computes in float32
    validation.measure = lambda _, loader, *options: (
        dict.fromkeys(loader.dataset.views, nothing),
        (),
    )


def _inject(hangs: str = "", nan: tuple[int, ...] = (), limit: int = 0, step: int = 0) -> None:
    from ffn.data import VideoDataset
    from ffn.engine.train_step import TrainStep

    open_file, backward = VideoDataset._open_file, TrainStep._backward

    def hang(self: Any, record: Any) -> Any:
        if hangs and record.path.endswith(hangs):
            time.sleep(600)
        return open_file(self, record)

    def poison(self: Any, batch: dict[str, Any], *, number: int, **more: Any) -> dict[str, Any]:
        if limit and number == step:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        before = self.normalize
        try:
            if number in nan:
                self.normalize = lambda clip: before(clip) * float("nan")
            return backward(self, batch, number=number, **more)
        finally:
            self.normalize = before

    VideoDataset._open_file, TrainStep._backward = hang, poison


def _arm(where: str, after: float, rank: int, nth: int = 1) -> None:
    """Kill this process or a loader worker, a time after a place is reached for the nth time."""
    reached = iter(range(1, 10**6))

    def at(owner: Any, name: str, act: Any) -> None:
        before = getattr(owner, name)

        def armed(*args: Any, **kwargs: Any) -> Any:
            if next(reached) != nth:
                return before(*args, **kwargs)
            INSIDE.value = 1  # shared memory: the others see it after this process has ended
            threading.Thread(target=act, daemon=True).start()
            try:
                return before(*args, **kwargs)
            finally:
                INSIDE.value = 0

        setattr(owner, name, armed)

    def die() -> None:
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_worker() -> None:
        time.sleep(after)
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        if children:
            os.kill(int(random.choice(children)), signal.SIGKILL)

    if where == "save":
        from ffn.engine.checkpoints import RunFolder

        at(RunFolder, "save", die)
    elif where == "validation":
        from ffn.engine import validation

        at(validation, "measure", die)
    elif where == "worker":
        from ffn.engine.train_step import TrainStep

        at(TrainStep, "_backward", kill_worker)


if __name__ == "__main__":
    main()
