"""Benchmark of two source trees: training steps and forward passes of two versions."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ffn.benchmarks.timing import Comparison, Variant, compare, interleave
from ffn.devices import has_bf16
from ffn.export import can_pack

NOW = Path(__file__).parents[2]
MEMORY = "largest resident memory of the process"
STEP = "training step"
WORKTREE = "name another source tree, e.g. that of: git worktree add ../ffn-before COMMIT"
# Of this version; the earlier one runs the first.
FORMS = ("as trained", "fused", "fused, packed", "fused, bf16", "fused, bf16, packed")


def compare_versions(
    before: Path,
    model: str,
    trained_frames: Sequence[int],
    *,
    worker: str,
    frames: Sequence[int],
    batch_size: int,
    size: int,
    num_classes: int,
    precision: str,
    rounds: int,
    device: torch.device,
) -> Iterator[Comparison]:
    """Compare this version with an earlier one: a training step, or forward passes.

    Each variant runs in a process of its own, which imports the ffn of its tree; the processes
    take turns. A turn of a forward pass has an untimed pass before the timed one, so that the
    caches hold its weights. Packages that only the earlier version needs must be installed. Peak
    memory is the largest resident memory of the process on a CPU, and that of torch's allocator on
    CUDA.

    Args:
        before: the source tree of the earlier version, e.g. of ``git worktree add``.
        model: name of a model; its weights are random.
        trained_frames: views of the training step, and sub-networks of the network.
        worker: program of the processes, the text of `ffn.cli.version_worker`.
        frames: frame counts of the clips of forward passes; if there are none, a training step is
            measured.
        batch_size: videos per step, or clips per forward pass.
        size: height and width of the frames, pixels.
        num_classes: K.
        precision: of the training step, "fp32", "bf16" or "fp16".
        rounds: timed calls of each variant.
        device: CPU or CUDA.

    Raises:
        ValueError: ``before`` has no ffn, or this one.
        RuntimeError: a process ends, with the last line of its error.
    """
    if not (before / "ffn" / "__init__.py").is_file():
        raise ValueError(f"--before is {before}, which has no folder ffn; {WORKTREE}")
    if before.resolve() == NOW.resolve():
        raise ValueError(f"--before is {before}, the version that runs; {WORKTREE}")
    job = {"model": model, "frames": sorted(set(trained_frames)), "batch_size": batch_size}
    job |= {"size": size, "num_classes": num_classes, "precision": precision, "device": str(device)}
    where = f"batches of {batch_size} at {size} px"
    if not frames:
        jobs = {"before": (before, job | {"form": STEP}), "now": (NOW, job | {"form": STEP})}
        views = ", ".join(map(str, job["frames"]))
        yield _compare(
            f"{model}, {STEP}, views {views}, {where}", jobs, [("now", "before")], rounds, worker
        )
    for count in sorted(set(frames)):
        passes = {f"now, {form}": (NOW, job | {"form": form}) for form in _forms(device)}
        jobs = {"before, as trained": (before, job | {"form": FORMS[0]}), **passes}
        jobs = {name: (tree, one | {"clip_frames": count}) for name, (tree, one) in jobs.items()}
        pairs = [(name, "before, as trained") for name in passes]
        yield _compare(
            f"{model}, forward pass, {count} frames, {where}", jobs, pairs, rounds, worker
        )


def _forms(device: torch.device) -> list[str]:
    """The forms that can run here; those in bf16 not on a CPU without fast operators."""
    dtypes = {form: torch.bfloat16 if "bf16" in form else torch.float32 for form in FORMS}
    on_cpu = device.type == "cpu"
    forms = [form for form in FORMS if "bf16" not in form or not on_cpu or has_bf16()]
    return [form for form in forms if "packed" not in form or (on_cpu and can_pack(dtypes[form]))]


def describe_tree(tree: Path) -> str:
    """The commit of a source tree; "unknown" if it is not a checkout of git."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _compare(
    title: str,
    jobs: Mapping[str, tuple[Path, dict[str, Any]]],
    pairs: Collection[tuple[str, str]],
    rounds: int,
    worker: str,
) -> Comparison:
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(_Worker(name, tree, job, worker))
            for name, (tree, job) in jobs.items()
        }
        calls = {name: process.run for name, process in workers.items()}
        cpu = torch.device("cpu")  # where this process waits
        untimed = 0 if any(job["form"] == STEP for _, job in jobs.values()) else 1
        seconds = interleave(calls, rounds=rounds, device=cpu, untimed=untimed)
    variants = [
        Variant(name, jobs[name][1]["batch_size"], seconds[name], process.peak)
        for name, process in workers.items()
    ]
    return compare(title, variants, list(pairs))


class _Worker:
    """A process that runs one job with the ffn of a source tree, once per call of `run`."""

    def __init__(self, name: str, tree: Path, job: Mapping[str, Any], worker: str) -> None:
        self.name, self.peak = name, 0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        self.process = subprocess.Popen(
            [sys.executable, "-c", worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=tree,  # the first entry of sys.path
        )
        found = Path(self._ask(json.dumps(job))["path"]).parents[2]
        if found.resolve() != tree.resolve():
            self.__exit__()
            raise RuntimeError(f"{name}: the process imports ffn of {found}, not of {tree}")

    def run(self) -> None:
        """Run the job once."""
        self.peak = max(self.peak, self._ask("run")["peak"])

    def _ask(self, line: str) -> dict[str, Any]:
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; its error follows
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            last = (self.errors.read().strip().splitlines() or ["no message"])[-1]
            self.__exit__()
            raise RuntimeError(f"{self.name}: the process ended with {last}")
        return json.loads(answer)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()
