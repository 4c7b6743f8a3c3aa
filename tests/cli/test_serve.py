"""The serve command: what it refuses, and its answers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_files import save_network

from ffn.cli import main
from ffn.serve import Client, Predictor

ROOT = Path(__file__).parents[2]


def test_refusals(weights, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for words, named in (
            (f"{weights} {weights}", "twice"),
            (f"{weights} --max-frames 8 --port {free_port()}", "12"),
            (f"{weights} --port {port}", f"--port {port}"),
            (f"{weights} --port 70000", "--port 70000"),
        ):
            assert main(["serve", "--weights", *words.split()]) == 2
            assert named in capsys.readouterr().err


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture(scope="module")
def address(weights, tmp_path_factory) -> Iterator[str]:
    """A service in a process of its own; it ends by SIGTERM, and leaves no file."""
    port = free_port()
    temporary, folder = tmp_path_factory.mktemp("temporary"), tmp_path_factory.mktemp("other")
    other = save_network(folder / "other.safetensors", ranges={3: (2, 4), 6: (5, 9)})
    command = [sys.executable, "-m", "ffn", "serve", "--weights", weights, other]
    command += ["--precision", "fp32", "--port", str(port), "--max-mib", "1"]
    environment = {**os.environ, "TMPDIR": str(temporary), "FFN_HOME": str(temporary / "home")}
    with subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                break
        else:
            raise AssertionError("".join(lines))
        yield f"http://127.0.0.1:{port}"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=30)[0]
        assert (process.returncode, output) == (0, "")
        assert time.monotonic() - began < 20  # 4 s on an idle machine
    left = {path.name.partition("_")[0] for path in temporary.iterdir()}
    assert left <= {"home", "torchinductor"}  # FFN_HOME, and a folder of torch


@pytest.mark.slow
def test_a_client(address, weights, videos) -> None:
    client = Client(address)
    predictor = Predictor(weights, precision="fp32")
    for video in videos:
        (label, probability), *_ = predictor(video, frames=5).top()
        found = client.predict(video, 5)["labels"][0]
        assert found["label"] == label
        assert found["probability"] == pytest.approx(probability, abs=1e-5)


@pytest.mark.slow
def test_the_health_check_of_the_container(address) -> None:
    text = (ROOT / "examples/serve/Dockerfile").read_text().replace("\\\n", "")
    (check,) = re.findall(r"HEALTHCHECK .* CMD (.*)", text)
    for here, status in ((address, 0), ("http://127.0.0.1:9", 1)):
        _, *words = json.loads(check.replace("http://127.0.0.1:7860", here))
        done = subprocess.run([sys.executable, "-I", *words], capture_output=True)
        assert done.returncode == status, done.stderr
