"""Pack a clip store, or compute the features of a frozen network, on a Ray cluster.

    pip install "frame-flexible[ray]"
    python examples/prepare_with_ray.py store CONFIG [key=value …]
    python examples/prepare_with_ray.py features CONFIG [key=value …] [--gpus 0.5]

All machines open the videos by the paths of the config. A store is a folder that they share; the
machine that starts this writes it, as `ffn pack` does. Features (task.name=probe) are written on
this machine, into features.db of FFN_HOME, where a new training with the same config finds them.
Started again, it computes what is missing.
"""

import argparse
import signal
import sys
import tempfile
from collections import deque
from functools import partial
from itertools import islice

import ray
import torch
from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

from ffn import data
from ffn.data.workers import Failure
from ffn.engine.build import build_run
from ffn.engine.build_data import read_config_splits, store_location
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.tasks import TASKS

TIMEOUT, SAMPLES = 600, 16  # seconds of a video; samples of a task that computes features


def apply(function, jobs, gpus=0.0):
    """Yield each job and its result, in order; a job that ends its worker three times fails."""

    @ray.remote(num_cpus=1, num_gpus=gpus, max_retries=2)
    def prepare(job):
        end_after(TIMEOUT)
        result = function(job)
        end_after(0)
        return result

    waiting, running = iter(jobs), deque()
    while True:
        most = 4 * int(ray.cluster_resources().get("CPU", 1))
        for job in islice(waiting, max(0, most - len(running))):
            running.append((job, prepare.remote(job)))
        if not running:
            return
        job, result = running.popleft()
        try:
            yield job, ray.get(result)
        except (WorkerCrashedError, OutOfMemoryError, NodeDiedError) as error:
            cause = f"its worker ended ({type(error).__name__}), or it took more than {TIMEOUT} s"
            yield job, Failure(cause)


def end_after(seconds):
    """End this process by a signal after so many seconds; 0: not."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def pack(config):
    """Write the store of a config; return the number of videos that could not be read."""
    videos = read_config_splits(config.data, labelled=False)
    pattern = config.data.frame_pattern
    report = data.pack(
        [*videos.train, *videos.val],
        store_location(config.data),
        root=config.data.root,
        run=apply,
        **({"pattern": pattern} if pattern else {}),
    )
    print(f"{report.packed} clips packed, {report.kept} packed before", flush=True)
    for one in report.unreadable:
        print(f"unreadable: {one.key}: {one.reason}", file=sys.stderr)
    return len(report.unreadable)


def datasets(config, device):
    """The features of the training and of the validation videos."""
    run = build_run(config, World(0, 1, torch.device(device)))
    return {"train": run.train_loader.dataset, "val": run.val_loader.dataset}


def compute(job, config, device):
    """Rows of the samples of a job."""
    torch.set_num_threads(1)
    part, samples = job
    features, rows = datasets(config, device)[part], []
    for one in samples:
        end_after(TIMEOUT)
        rows += features.compute(*one, features.numbers)[2]
    return rows


def compute_all(config, gpus):
    """Compute the features of a config; return the number of videos without."""
    own, jobs = datasets(config, "cpu"), []
    for part, features in own.items():
        left = features.missing()
        print(f"{part}: {len(left)} samples to compute", flush=True)
        jobs += [(part, left[n : n + SAMPLES]) for n in range(0, len(left), SAMPLES)]
    work = partial(compute, config=config, device="cuda" if gpus else "cpu")
    for (part, _), rows in apply(work, jobs, gpus):
        if isinstance(rows, Failure):
            print(f"{part}: {rows}", file=sys.stderr)
        else:
            own[part].keep(rows)
    paths = {f.records[index].path for f in own.values() for index, _ in f.missing()}
    for path in sorted(paths):
        print(f"without features: {path}", file=sys.stderr)
    return len(paths)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=["store", "features"])
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--gpus", type=float, default=0.0, help="of a task that computes features")
    args = parser.parse_args()
    # A folder without checkpoints, as that of a new run, which has its start weights.
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(args.config, [*args.overrides, f"log.output={folder}"])
        if args.what == "features" and not TASKS[config.task.name].reads_features:
            parser.error(f"features are those of task.name=probe; it is {config.task.name}")
        ray.init(ignore_reinit_error=True)
        failed = pack(config) if args.what == "store" else compute_all(config, args.gpus)
    sys.exit(1 if failed else 0)
