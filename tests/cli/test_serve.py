"""The serve command: what it refuses, and its answers."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from serve_files import FORM, PART, UPLOAD, ask, ask_the_page, save_network, upload

from ffn.cli import main
from ffn.serve import Client, Predictor

ROOT = Path(__file__).parents[2]
HELD: list[socket.socket] = []


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
def process(weights, tmp_path_factory) -> Iterator[tuple[str, int]]:
    """The address of a service and its process; hostile requests do not keep it from ending."""
    port = free_port()
    temporary, folder = tmp_path_factory.mktemp("temporary"), tmp_path_factory.mktemp("other")
    other = save_network(folder / "other.safetensors", ranges={3: (2, 4), 6: (5, 9)})
    command = [sys.executable, "-m", "ffn", "serve", "--weights", weights, other]
    command += ["--precision", "fp32", "--port", str(port), "--max-mib", "1"]
    environment = {**os.environ, "TMPDIR": str(temporary), "FFN_HOME": str(temporary / "home")}
    log = folder / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*map(str, command)], cwd=ROOT, env=environment, stdout=output, stderr=output
        ) as process,
    ):
        while "Ctrl-C" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process.pid
        for request in ("GET /health", "POST /api/predict", "POST /gradio_api/upload"):
            text = f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999\r\n"
            for end in ("X: ", "\r\n1234"):  # headers and bodies that do not end
                waiting = socket.create_connection(("127.0.0.1", port))
                waiting.sendall((text + end).encode())
                HELD.append(waiting)
        time.sleep(1)
        logged, began = log.read_text(), time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 20  # 3 s on an idle machine
        assert log.read_text() == logged
    # FFN_HOME, and a folder of torch; the fork server, which has others, ends a bit later.
    while {one.name.partition("_")[0] for one in temporary.iterdir()} - {"home", "torchinductor"}:
        assert time.monotonic() - began < 40, [*temporary.iterdir()]
        time.sleep(0.5)


@pytest.fixture
def address(process) -> str:
    return process[0]


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


def attacks(address: str, video: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Hostile requests, and the status of the answer to each; 0 for no video of the page."""
    content, meta = video.read_bytes(), {"_type": "gradio.FileData"}
    os.mkfifo(folder / "fifo")
    private = str(shutil.copy(video, folder / "private.mp4"))
    for path in (private, "/etc/hostname", "/dev/zero", str(folder / "fifo")):
        for given in ({"path": path, "meta": meta}, {"path": path}, path):
            event = ask_the_page(address, given, "tiny", 4)
            yield f"page reads {given}", 200 if event["success"] or "GMACs" in str(event) else 0
        yield f"page shows {path}", ask(address, "GET", f"/gradio_api/file={path}").status
    routes = ["/", "/health", "/config", "/api/predict", "/gradio_api/queue/join", UPLOAD]
    port = address.rpartition(":")[2]
    for name, value in (
        *(("Host", "evil.example"), ("Host", f"127.0.0.1.evil.example:{port}")),
        *(("Origin", "http://evil.example"), ("Origin", "null"), ("Origin", "http://localhost:1")),
    ):
        for route, method in itertools.product(routes, ("GET", "POST", "OPTIONS")):
            found = ask(address, method, route, None, {name: value})
            yield f"{name}: {value} {method} {route}", found.status
    for route in (
        *("dev/reload", "heartbeat/x", "proxy=http://127.0.0.1/", "stream/x", "component_server"),
        *("call/x/y", "run/x", "upload_progress?upload_id=x", "vibe-code/", "deep_link", "token"),
    ):
        for method in ("GET", "POST"):
            yield f"{method} {route}", ask(address, method, f"/gradio_api/{route}").status
    for path in ("//gradio_api/dev/reload", "/assets/..%2f..%2fgradio.js", "/gradio_api/file=%00"):
        yield path, ask(address, "GET", path).status
    idle = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(400)]
    for connection in idle:
        with suppress(OSError):
            connection.sendall(b"GET / HT")
    idle[0].settimeout(5)
    with suppress(ConnectionResetError):
        assert idle[0].recv(1) == b""
    yield "400 connections without a request", 0
    place = content.index(b"stsz") + 8
    many = content[:place] + struct.pack(">II", 1, 80_000_000) + content[place + 8 :]
    stripped = content.translate(None, b"\r\n\0")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for what, route, body, headers in (
        ("80 million frames", "/api/predict", many, {}),
        ("curl -d", "/api/predict", stripped, form),
        ("3 MiB", "/api/predict", bytes(3 << 20), {}),
        ("3 MiB in chunks", "/api/predict", iter([bytes(1 << 20)] * 3), {}),
        ("long JSON", "/gradio_api/queue/join", b'["' + bytes(1 << 20) + b'"]', {}),
        ("JSON in chunks", "/gradio_api/queue/join", iter([bytes(1 << 20)] * 9), {}),
        ("deep JSON", "/gradio_api/queue/join", b"[" * 60_000, {}),
        ("long upload", UPLOAD, bytes(3 << 20), FORM),
        ("many files", UPLOAD, PART % b"x" * 1500 + b"--x--\r\n", FORM),
        ("path as name", UPLOAD, PART.replace(b"a.mp4", b"..") % b"x" + b"--x--\r\n", FORM),
    ):
        with suppress(ConnectionError):
            yield what, ask(address, "POST", route, body, headers).status


@pytest.mark.slow
def test_attacks_are_refused(process, videos, tmp_path) -> None:
    """The service answers a browser and clients after each, with the same memory."""
    (address, pid), client = process, Client(process[0], timeout=60)
    status = Path(f"/proc/{pid}/status")
    before = int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1])
    for what, found in attacks(address, Path(videos[0]), tmp_path):
        print(f"{found or 'refused':>7}  {what}")
        assert found in (0, 400, 403, 404, 405, 413, 415, 422), what
        assert client.healthy(), what
    assert int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) - before < 200_000  # kB

    body, form = Path(videos[0]).read_bytes(), "application/x-www-form-urlencoded"
    proxied = {"Host": "localhost", "Origin": "https://localhost:8443"}
    for more in ({"Origin": address}, proxied, {"Content-Type": form}):
        assert ask(address, "POST", "/api/predict?frames=4", body, more).status == 200
    (uploaded,) = json.loads(upload(address, Path(videos[0])))
    given = {"path": uploaded, "meta": {"_type": "gradio.FileData"}}
    assert "GMACs" in str(ask_the_page(address, given, "tiny", 4))
