"""The built package: it contains what the commands need, and works without a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="70.1")  # with bdist_wheel
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", folder, source], check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


def test_configs_and_records_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    configs = [path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.yaml")]
    for config in configs:
        assert sum(name.endswith(f"configs/{config.as_posix()}") for name in names) == 1, config
    for record in (ROOT / "model_zoo/weights").glob("*.yaml"):
        assert any(name.endswith(f"weights/{record.name}") for name in names), record


def test_an_installed_package_works_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    """Without the clone: list the configs, make videos, train, and predict with own weights."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    work = tmp_path / "work"
    work.mkdir()
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        code = "import sys; from ffn.cli import main; sys.exit(main())"  # as the program ffn does
        is_module = arguments[0].startswith("ffn.")
        command = [sys.executable, *(["-m"] if is_module else ["-c", code]), *arguments]
        done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = "import ffn; print(ffn.__file__)"
    found = subprocess.run([sys.executable, "-c", where], cwd=work, env=env, capture_output=True)
    assert Path(found.stdout.decode().strip()).is_relative_to(site)
    assert "quickstart/own_clips" in run("configs")
    videos = ("--clips-per-class", "1", "1")
    run("ffn.datasets.synthetic", "data/motion", *videos)
    options = ("train.epochs=1", "data.workers=0", "train.batch_size=4", "log.output=run")
    run("train", "quickstart/motion_flexible", *options)
    video = next((work / "data/motion").rglob("*.mp4"))
    assert "sub-network 8" in run(
        "predict", "--weights", "run/last.pt", "--frames", "7", str(video)
    )
