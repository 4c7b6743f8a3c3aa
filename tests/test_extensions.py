"""Extensions from your own package: the code and the commands of CONTRIBUTING.md."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ffn.data import read_annotations
from ffn.datasets.synthetic import generate

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"`(my_package/\w+\.py)`\n\n```python\n(.*?)```", TEXT, flags=re.DOTALL))
COMMANDS = "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)).splitlines()
SMALL = ["train.batch_size=12", "train.save_steps=1", "data.cache_gib=0", "log.interval=1"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user, with the package, the configs and a few generated videos."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_package").mkdir()
    for name, code in FILES.items():
        (folder / name).write_text(code)
    (folder / "configs").symlink_to(ROOT / "configs")
    generate(folder / "data" / "motion", train_per_class=1, val_per_class=1)
    return folder


def run(folder: Path, start: str, *more: str, without: str = "", status: int = 0) -> str:
    """Run the command of the page that starts with these words, or these; what it printed."""
    line = next((line for line in COMMANDS if line.startswith(start)), start)
    _, *arguments = shlex.split(line.replace(without, "") if without else line)
    done = subprocess.run(
        [sys.executable, "-m", "ffn", *arguments, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_model_task_and_format_of_a_package(folder: Path) -> None:
    """Train, resume, test, export and publish; without the package, the error names it."""
    two = ["train.epochs=2", *SMALL]
    run(folder, "ffn train", *two)
    last = folder / "runs/soft/last.pt"
    whole = torch.load(last, weights_only=True)
    assert whole["meta"]["imports"] == ["my_package"]
    assert whole["meta"]["config"]["task"]["temperature"] == 4.0

    last.unlink()
    max((folder / "runs/soft/checkpoints").iterdir()).unlink()
    run(folder, "ffn train", *two)
    again = torch.load(last, weights_only=True)["model"]
    assert all(torch.equal(value, again[key]) for key, value in whole["model"].items())

    run(folder, "ffn test", "--output", "tested")
    (network,) = json.loads((folder / "tested/results.json").read_text())["networks"]
    assert [(row["frames"], row["subnet"]) for row in network["rows"]] == [(4, 4), (8, 8)]

    run(folder, "ffn export")
    assert torch.jit.load(folder / "net.ts")(torch.randn(2, 3, 8, 24, 24)).shape == (2, 12)
    message = run(folder, "ffn test", without="imports=my_package ", status=2)
    assert "my_package" in message
    publish = "ffn publish runs/soft/best.pt two_convs.motion_f4_8"
    assert "pass --imports my_package to a command" in run(folder, publish, status=2)
    run(folder, f"{publish} --imports my_package")
    assert "imports:\n- my_package\n" in (folder / "two_convs.motion_f4_8.yaml").read_text()


def test_data_set_of_a_package(folder: Path) -> None:
    root = folder / "data/mine"
    root.mkdir()
    for number, video in enumerate(sorted((folder / "data/motion/videos").glob("*.mp4"))[:6]):
        shutil.copy(video, root / f"{number}.mp4")
    (root / "train.csv").write_text("0.mp4,one\n1.mp4,two\n2.mp4,one\n3.mp4,two\n")
    (root / "val.csv").write_text("4.mp4,one\n5.mp4,two\n")

    run(folder, "ffn prepare")

    records, classes = read_annotations(root / "index/train.csv", root=root)
    assert classes == ["one", "two"]
    assert [(Path(r.path).name, r.label) for r in records] == [
        (f"{number}.mp4", number % 2) for number in range(4)
    ]
