"""The serve command: what it refuses, and the page in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
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
SECONDS = 60_000  # a browser's milliseconds


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
    command += ["--precision", "fp32"]
    command += ["--port", str(port), "--max-mib", "1"]
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


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    playwright = pytest.importorskip("playwright.sync_api")
    if chromium is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser, address: str) -> tuple[object, list[str]]:
    """A page of a browser of its own, and the addresses of other hosts that it asks."""
    page, others = browser.new_context().new_page(), []
    page.on("request", lambda r: None if address in r.url else others.append(r.url))
    page.goto(address)
    page.wait_for_selector("#frames", timeout=SECONDS)
    return page, others


def wait_for(page, text: str) -> str:
    """The message of the page, as soon as it starts with a text."""
    wanted = f"document.querySelector('#message').innerText.trim().startsWith({text!r})"
    page.wait_for_function(wanted, timeout=SECONDS)
    return page.inner_text("#message")


def upload(page, path: str) -> None:
    page.set_input_files("input[type=file]", path)


def set_frames(page, count: int) -> None:
    page.fill("#frames input[type=number]", str(count))
    page.keyboard.press("Tab")


@pytest.mark.slow
def test_the_page(address, browser, weights, videos) -> None:
    predictor = Predictor(weights, precision="fp32")
    page, others = open_page(browser, address)
    upload(page, videos[0])
    assert "8 frames, sub-network 8, torch, fp32" in wait_for(page, "8 frames")
    for count, part in ((5, 4), (12, 8), (2, 2)):
        set_frames(page, count)
        assert f"{count} frames, sub-network {part}," in wait_for(page, f"{count} frames,")
        label = predictor(videos[0], frames=count).top(1)[0][0]
        assert page.inner_text("#labels h2") == label
        page.wait_for_function(
            f"document.querySelectorAll('#seen .thumbnail-lg').length == {count}", timeout=SECONDS
        )
        table = " ".join(page.inner_text("#table").split())
        for trained in (2, 4, 8):
            (label, probability), *_ = predictor(videos[0], frames=trained).top(1)
            assert f" {trained} {label} {probability:.1%} {trained} " in table
    assert [one for one in others if not one.startswith(("data:", "blob:"))] == []


@pytest.mark.slow
def test_another_network_in_the_page(address, browser, videos) -> None:
    """The counts are those of the network that is chosen."""
    page, _ = open_page(browser, address)
    upload(page, videos[0])
    wait_for(page, "8 frames")
    page.click("#model input")
    page.click("text=other")
    assert "sub-network 6" in wait_for(page, "6 frames")
    table = "document.querySelector('#table').innerText.replace(/\\s+/g, ' ')"
    page.wait_for_function(f"/ 3 \\S+ \\S+ 3 .* 6 \\S+ \\S+ 6 /.test({table})", timeout=SECONDS)
