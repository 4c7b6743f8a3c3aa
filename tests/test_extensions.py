"""Extensions from your own package: code and commands of CONTRIBUTING.md."""

from __future__ import annotations

import json
import os
import re
import shlex
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
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
]
SMALL = ["train.batch_size=12", "train.save_steps=1", "data.cache_gib=0", "log.interval=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, the configs and a few generated videos, as a user's."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_package").mkdir()
    for name, code in FILES.items():
        (folder / name).write_text(code)
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "tools").symlink_to(ROOT / "tools")
    generate(folder / "data" / "motion", train_per_class=1, val_per_class=1)
    return folder


def run(folder: Path, command: str, *more: str, status: int = 0) -> str:
    """Run a command of the page in the folder; returns what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *arguments, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def command(start: str) -> str:
    (found,) = (line for line in COMMANDS if line.startswith(f"python tools/{start}"))
    return found


def test_the_page_has_a_file_per_door() -> None:
    assert set(FILES) == {
        f"my_package/{name}.py" for name in ("__init__", "models", "tasks", "datasets", "formats")
    }


@pytest.mark.slow
def test_help_lists_the_options_of_the_task(folder: Path) -> None:
    shown = run(folder, command("train.py --help"))

    assert re.search(r"task\.temperature=2\.0 +temperature of the distillation.*soft", shown)
    assert "(flexible, mixed_sampling, plain, proportional_sampling, soft)" in shown


@pytest.mark.slow
def test_model_and_task_train_test_and_resume(folder: Path) -> None:
    training = command("train.py configs")
    shown = run(folder, training, *SMALL)
    assert "two_convs, task soft: 12 training and 12 validation videos" in shown
    assert "soft_4" in shown  # the loss of the task

    last = folder / "runs/motion_flexible/last.pt"
    whole = torch.load(last, weights_only=True)
    assert whole["training"]["step"] == 1
    assert whole["meta"]["imports"] == ["my_package"]
    assert whole["meta"]["config"]["task"]["temperature"] == 4.0
    assert "frame-flexible at 4, 8, 16 frames: 2 private modules and 1 weight alterations" in shown
    assert "finished, 1 of 1 epochs are done" in run(folder, training, *SMALL)

    run(folder, command("test.py"))
    (network,) = json.loads((folder / "runs/motion_flexible/test/results.json").read_text())[
        "networks"
    ]
    assert [(row["frames"], row["subnet"]) for row in network["rows"]] == [(4, 4), (8, 8)]

    # Without the package, the error names it.
    without = command("test.py").replace("imports=my_package ", "") + " --overwrite"
    message = run(folder, without, status=2)
    assert "my_package" in message
    assert "Traceback" not in message


@pytest.mark.slow
def test_export_format_writes_a_file_that_runs_without_ffn(folder: Path) -> None:
    if not (folder / "runs/motion_flexible/best.pt").is_file():
        run(folder, command("train.py configs"), *SMALL)

    shown = run(folder, command("export.py"))

    assert "net.ts" in shown
    exported = torch.jit.load(folder / "net.ts")
    assert exported(torch.randn(2, 3, 8, 24, 24)).shape == (2, 12)
    message = run(folder, command("export.py").replace("--imports my_package ", ""), status=2)
    assert "Traceback" not in message


@pytest.mark.slow
def test_dataset_is_prepared_and_its_index_is_read(folder: Path) -> None:
    root = folder / "data/mine"
    root.mkdir()
    videos = sorted((folder / "data/motion/videos").glob("*.mp4"))[:6]
    for number, video in enumerate(videos):
        (root / f"{number}.mp4").write_bytes(video.read_bytes())
    (root / "train.csv").write_text("0.mp4,one\n1.mp4,two\n2.mp4,one\n3.mp4,two\n")
    (root / "val.csv").write_text("4.mp4,one\n5.mp4,two\n")

    run(folder, command("prepare_data.py"))

    records, classes = read_annotations(root / "index/train.csv", root=root)
    assert classes == ["one", "two"]
    assert [(Path(r.path).name, r.label) for r in records] == [
        ("0.mp4", 0),
        ("1.mp4", 1),
        ("2.mp4", 0),
        ("3.mp4", 1),
    ]
    training = command("train.py configs").replace(
        "train.epochs=1", "train.epochs=1 data.root=data/mine"
    )
    lists = [
        "data.train=index/train.csv",
        "data.val=index/val.csv",
        "data.classes=index/classes.txt",
    ]
    small = [*SMALL, *lists, "train.batch_size=4", "log.output=runs/mine"]
    assert "4 training and 2 validation videos, 2 classes" in run(folder, training, *small)


@pytest.mark.slow
def test_run_with_an_own_task_resumes_bit_identically(folder: Path) -> None:
    training = command("train.py configs").replace("train.epochs=1", "train.epochs=2")
    run(folder, training, *SMALL, "log.output=runs/whole")
    checkpoints = folder / "runs/whole/checkpoints"
    state = torch.load(folder / "runs/whole/last.pt", weights_only=True)["model"]
    (checkpoints / "step_00000002.pt").unlink()
    (folder / "runs/whole/last.pt").unlink()

    shown = run(folder, training, *SMALL, "log.output=runs/whole")

    assert "resumed after 1 of 2 epochs" in shown
    again = torch.load(folder / "runs/whole/last.pt", weights_only=True)["model"]
    assert all(torch.equal(value, again[key]) for key, value in state.items())


def test_package_that_does_not_exist(folder: Path) -> None:
    training = command("train.py configs").replace("my_package", "no_package")

    message = run(folder, training, status=2)

    assert "imports: cannot import 'no_package'" in message
    assert "Traceback" not in message
