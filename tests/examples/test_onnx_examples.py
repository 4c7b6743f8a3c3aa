"""The programs that run an exported network without ffn print the labels of ffn.Predictor."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

import ffn
from ffn.data import open_video
from ffn.datasets.synthetic import generate

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
EXAMPLES = Path(__file__).parents[2] / "examples"
SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    ffn.export(ffn.load(SHIPPED), path, frames=8, preprocess=True, probabilities=True)
    return path


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("motion")
    generate(folder, train_per_class=1, val_per_class=1)
    return sorted((folder / "videos").glob("val_*.mp4"))[:4]


def assert_predicted(printed: str, video: Path) -> None:
    lines = re.findall(r"([\d.]+)%  (\w+)", printed)
    expected = ffn.Predictor(SHIPPED, precision="fp32")(video, frames=8).top(3)
    assert [label for _, label in lines] == [label for label, _ in expected]
    assert [float(p) for p, _ in lines] == pytest.approx([100 * p for _, p in expected], abs=0.5)


def test_frames_are_read_as_displayed(write_video: Callable, tmp_path: Path) -> None:
    """Of a video of a phone, which states its rotation."""
    read = runpy.run_path(str(EXAMPLES / "onnx_video.py"))["read_frames"]
    for degrees in (0, 90, -90, 180):
        path = write_video(tmp_path / "a.mp4", 1, rotation=degrees, halves=True)
        np.testing.assert_array_equal(read(path, [0]), open_video(path).read([0]).numpy())


def test_help() -> None:
    command = [sys.executable, str(EXAMPLES / "onnx_video.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "video" in done.stdout


@pytest.mark.slow
def test_python_without_torch_and_ffn(network: Path, videos: list[Path]) -> None:
    path = EXAMPLES / "onnx_video.py"
    blocked = "import sys, runpy; sys.modules['torch'] = sys.modules['ffn'] = None; "
    for video in videos:
        code = f"{blocked}sys.argv = {['', str(network), str(video)]}; "
        code += f"runpy.run_path({str(path)!r}, run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert_predicted(done.stdout, video)


def test_javascript(request: pytest.FixtureRequest, videos: list[Path]) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    found = subprocess.run([node, "-e", "require('onnxruntime-node')"], cwd=EXAMPLES)
    if found.returncode:
        pytest.skip("needs onnxruntime-node: npm install it, and set NODE_PATH to its node_modules")
    network = request.getfixturevalue("network")
    for video in videos:
        with av.open(str(video)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        height, width = frames[0].shape[:2]
        done = subprocess.run(
            [node, str(EXAMPLES / "onnx_frames.js"), str(network), str(width), str(height)],
            input=np.stack(frames).tobytes(),
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert_predicted(done.stdout.decode(), video)
