"""The examples on a local cluster of two machines: a killed worker loses and doubles nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from serve_files import save_network, write_video

from ffn.datasets.synthetic import generate
from ffn.serve import Predictor

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    found.add_node(num_cpus=2)
    yield found
    found.shutdown()


def workers(cluster: Cluster, name: str) -> list[int]:
    """Processes that run what has a name."""
    raylets = [n.all_processes["raylet"][0].process.pid for n in cluster.list_all_nodes()]
    parents = ",".join(map(str, raylets))
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", parents], capture_output=True)
    rows = [line.split(maxsplit=1) for line in found.stdout.decode().splitlines()]
    return [int(pid) for pid, title in rows if title.startswith(f"ray::{name}")]


@pytest.mark.slow
def test_a_killed_worker(cluster: Cluster, tmp_path: Path) -> None:
    import pandas as pd

    weights = str(save_network(tmp_path / "net.safetensors", spread=0.1))
    random, paths = np.random.default_rng(0), [str(tmp_path / f"{n}.mp4") for n in range(60)]
    for path in paths[1:]:
        write_video(Path(path), random.integers(0, 256, (40, 64, 64, 3), np.uint8), rate=10)
    listed, output = tmp_path / "list.csv", tmp_path / "rows"
    command = [
        sys.executable,
        EXAMPLES / "predict_with_ray.py",
        listed,
        output,
        "--weights",
        weights,
    ]
    command += ["--actors", "2", "--rows", "2", "--frames", "4"]
    environment = os.environ | {"RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"}

    def start(count: int, *more: str) -> subprocess.Popen[str]:
        table = pd.DataFrame({"path": [paths[1], *paths[:count]]})
        table.loc[0, ["start", "end"]] = 1.0, 2.0
        table.to_csv(listed, index=False)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*command, *more], env=environment, **pipes)

    running = start(50)
    while not list(output.glob("*.parquet")):
        assert running.poll() is None, running.stdout.read()
        time.sleep(0.02)
    os.kill(workers(cluster, "MapWorker")[0], signal.SIGKILL)
    assert len(list(output.glob("*.parquet"))) < 20
    text = running.communicate()[0]
    assert running.returncode == 0, text
    again = start(60)
    text = again.communicate()[0]
    assert (again.returncode, "10 videos to label" in text) == (0, True), text

    rows = pd.read_parquet(output).set_index("path")
    parts = rows[rows.start.notna()]
    assert (list(parts.index), list(parts.end)) == ([paths[1]], [2.0])
    rows = rows[rows.start.isna()]
    assert sorted(rows.index) == sorted(paths)
    assert rows.error.dropna().to_dict() == {paths[0]: "no such file or folder"}
    predictor = Predictor(weights, precision="fp32")
    for path in paths[1:]:
        found = [(rows.label[path], rows.probability[path])]
        assert found == [
            (k, pytest.approx(p, abs=1e-5)) for k, p in predictor(path, frames=4).top(1)
        ]

    cut = next(output.glob("*.parquet"))
    os.truncate(cut, 20)
    for refused, why in (
        (start(60), f"{cut} is damaged"),
        (start(60, "--frames", "8"), "rows of other weights or frames"),
    ):
        assert why in refused.communicate()[0]
        assert refused.returncode == 1


@pytest.mark.slow
def test_a_store_and_features(cluster: Cluster, tmp_path: Path) -> None:
    root = generate(tmp_path / "motion", train_per_class=12, val_per_class=1)
    environment = {"RAY_ADDRESS": cluster.address, "OMP_NUM_THREADS": "1"}
    common = ["configs/quickstart/motion_flexible.yaml", f"data.root={root}"]

    def run(home: str, *command: object, killed: bool = False) -> int:
        more = environment | {"FFN_HOME": str(tmp_path / home)}
        command = [sys.executable, *map(str, command)]
        running = subprocess.Popen(command, env=os.environ | more, cwd=EXAMPLES.parent)
        while killed and not (busy := workers(cluster, "prepare")):
            assert running.poll() is None
            time.sleep(0.1)
        if killed:
            os.kill(busy[0], signal.SIGKILL)
        return running.wait()

    def rows(home: str) -> list[tuple[bytes, bytes]]:
        with closing(sqlite3.connect(tmp_path / home / "features.db")) as database:
            return database.execute("SELECT * FROM features ORDER BY key").fetchall()

    example = EXAMPLES / "prepare_with_ray.py"
    probe = [*common, "task.name=probe", "task.variants=1", "train.epochs=1"]
    probe += ["model.weights=tsm_tiny.motion_f4_8_16"]
    train = ["-m", "ffn", "train", *probe, f"log.output={tmp_path / 'run'}"]
    assert run("cluster", example, "features", *probe, killed=True) == 0
    found = rows("cluster")
    assert (run("cluster", *train), rows("cluster") == found) == (0, True)
    assert (run("local", *train, f"log.output={tmp_path / 'again'}"), rows("local") == found) == (
        0,
        True,
    )
    assert len(found) == 12 * (12 * 3 + 5)  # counts of training, and of validation

    next((root / "videos").iterdir()).write_bytes(b"")
    stores = root / "cluster", root / "local"
    assert run("cluster", example, "store", *common, "data.store=cluster", killed=True) == 1
    assert run("local", "-m", "ffn", "pack", *common, "data.store=local") == 1
    files = [{file.name: file.read_bytes() for file in store.iterdir()} for store in stores]
    assert files[0] == files[1]
