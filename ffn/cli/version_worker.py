"""The job of one source tree in ``tools/benchmark.py versions``, in a process of its own.

Its text runs as ``python -c``, so that it imports the ffn of another tree, which may lack this
file. It therefore uses only functions that every version has, and imports them late.

Standard input: the job as a line of JSON, then a line per call. Standard output: a line of JSON
that says which ffn runs, and after each call one with the peak memory of the process in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def training_step(job: dict[str, Any]) -> Callable[[], object]:
    """A step of frame-flexible training on random clips, all views together."""
    from itertools import count, repeat

    from ffn.engine import build, build_network
    from ffn.engine.config import load_config
    from ffn.engine.distributed import World

    frames, batch, size, classes = (job[k] for k in ("frames", "batch_size", "size", "num_classes"))
    device = torch.device(job["device"])
    options = [f"model.name={job['model']}", "task.name=flexible", f"task.frames={frames}"]
    config = load_config(None, [*options, f"train.precision={job['precision']}"])
    model = build_network.build_model(config, classes).to(device)
    world = World(0, 1, device)
    step = build.build_train_step(config, model, world, num_classes=classes)
    shapes = {t: (batch, 3, t, size, size) for t in frames}
    clips = {t: torch.randint(256, s, dtype=torch.uint8) for t, s in shapes.items()}
    one = {"clips": clips, "label": torch.randint(classes, (batch,))}
    moved = {"clips": {t: clip.to(device) for t, clip in clips.items()}}
    moved |= {"label": one["label"].to(device), "index": torch.arange(batch), "skipped": []}
    numbers = count()
    return lambda: step.step(repeat(moved), number=next(numbers), lr=1e-3)


def forward_pass(job: dict[str, Any]) -> Callable[[], object]:
    """A forward pass of a frame-flexible network with random weights, as trained or fused."""
    from ffn.core import convert
    from ffn.zoo import create_model

    frames, size = job["clip_frames"], job["size"]
    model = create_model(job["model"], num_classes=job["num_classes"]).to(job["device"]).eval()
    network = convert(model, job["frames"])
    clip = torch.randn(job["batch_size"], 3, frames, size, size, device=job["device"])
    if job["form"] != "as trained":
        from ffn.export import fuse

        network = fuse(network, frames, example=clip)
    if "bf16" in job["form"]:
        network, clip = network.bfloat16(), clip.bfloat16()
    if "packed" in job["form"]:
        from ffn.export import pack

        network = pack(network)

    def run() -> None:
        with torch.inference_mode():
            network(clip)

    return run


def tune_like_the_commands() -> None:
    """Tune the allocator, if the commands of the version do."""
    try:
        from ffn.host_memory import tune_allocator
    except ImportError:  # an earlier version
        return
    tune_allocator()


def peak_memory() -> int:
    """The largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where ru_maxrss starts with the memory of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, else KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Build the job, then run it once for each line."""
    job = json.loads(sys.stdin.readline())
    torch.manual_seed(0)
    if job["device"] == "cpu":
        tune_like_the_commands()
    call = training_step(job) if job["form"] == "training step" else forward_pass(job)
    from ffn import core

    print(json.dumps({"path": core.__file__}), flush=True)
    on_cuda = job["device"].startswith("cuda")
    for _ in sys.stdin:
        call()
        if on_cuda:
            torch.cuda.synchronize()
        peak = peak_memory()
        if on_cuda:
            peak = torch.cuda.max_memory_allocated()
        print(json.dumps({"peak": peak}), flush=True)


if __name__ == "__main__":
    main()
