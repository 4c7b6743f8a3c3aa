"""The endpoint of a service, over HTTP, and its client."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
import uvicorn
from serve_files import FORM, ask, ask_the_page, save_network, upload, write_video

from ffn.serve import Client, Predictor, ServiceError
from ffn.serve.client import __file__ as client_file
from ffn.serve.web import Limits, Service, create_app, mount_page

pytestmark = pytest.mark.slow  # processes and HTTP
LIMITS = Limits(max_mib=1.0, max_frames=16, timeout=60.0, max_requests=4)
COUNTS = (2, 3, 4, 7, 8, 12, "auto")


@pytest.fixture(scope="module")
def predictors(tmp_path_factory) -> dict[str, Predictor]:
    """Two networks with other weights."""
    folder = tmp_path_factory.mktemp("weights")
    spreads = {"tiny": 0.1, "other": 0.2}
    files = {k: save_network(folder / f"{k}.safetensors", spread=v) for k, v in spreads.items()}
    return {name: Predictor(path, precision="fp32") for name, path in files.items()}


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[Path]:
    folder, noise = tmp_path_factory.mktemp("videos"), np.random.default_rng(1)
    pixels = [noise.integers(0, 256, (n, 40, 48, 3), np.uint8) for n in (9, 20, 33)]
    return [write_video(folder / f"{n}.mp4", one, rate=10) for n, one in enumerate(pixels)]


@pytest.fixture(scope="module")
def address(predictors) -> Iterator[str]:
    with Service(predictors, limits=LIMITS, workers=2) as service:
        service.warm_up()
        app = create_app(service, hosts=["127.0.0.1"])
        mount_page(app, service)
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client(address) -> Client:
    return Client(address, timeout=120)


def refused(client: Client, *given: object, **options: object) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        client.predict(*given, **options)
    return caught.value.status, str(caught.value)


def test_the_page(address, predictors, videos) -> None:
    """An uploaded video with each number of frames; the counts are those of the network."""
    (uploaded,) = json.loads(upload(address, videos[1]))
    video = {"path": uploaded, "meta": {"_type": "gradio.FileData"}}
    for name, frames, part in (("tiny", 8, 8), ("tiny", 5, 4), ("tiny", 12, 8), ("other", 2, 2)):
        answer = ask_the_page(address, video, name, frames)
        message, labels, table, seen = answer["output"]["data"]
        assert message.startswith(f"{frames} frames, sub-network {part}, torch, fp32: ")
        assert labels["label"] == predictors[name](videos[1], frames=frames).top(1)[0][0]
        counts = sorted({frames, *predictors[name].trained_frames})
        tops = [predictors[name](videos[1], frames=count).top(1)[0] for count in counts]
        shown = [[count, label, f"{p:.1%}"] for count, (label, p) in zip(counts, tops, strict=True)]
        assert [row[:3] for row in table["data"]] == shown
        assert len(seen) == frames
    assert ask_the_page(address, "other")["output"]["data"] == [8]
    assert b"googleapis" not in ask(address, "GET", "/").read()  # it needs no other host


def test_the_page_opens_no_addresses(address) -> None:
    """A request may name one in place of an uploaded file, or of any other input."""
    asked = {"path": "http://video.invalid/x.mp4", "meta": {"_type": "gradio.FileData"}}
    for place in range(2):
        data = [None, "tiny", 4]
        data[place] = asked
        event = str(ask_the_page(address, *data))
        assert "does not open addresses such as http://video.invalid" in event


def test_many_requests_at_once_do_not_mix(client, predictors, videos) -> None:
    asked = [(v, n, m) for v in videos for n in COUNTS for m in predictors]
    random.Random(0).shuffle(asked)

    def ask(one: tuple[Path, int | str, str]) -> dict:
        video, frames, model = one
        return client.predict(video, frames, model=model, top=3)

    with ThreadPoolExecutor(LIMITS.max_requests) as pool:
        answers = [*pool.map(ask, asked)]

    for (video, frames, model), answer in zip(asked, answers, strict=True):
        expected = predictors[model](video, frames=frames)
        found = {one["label"]: one["probability"] for one in answer["labels"]}
        assert found == pytest.approx(dict(expected.top(3)), abs=1e-5)
        assert (answer["name"], answer["frames"]) == (video.name, expected.frames)
        assert (answer["indices"], answer["why"]) == ([*expected.indices], expected.why)
        assert answer["gmacs"] == predictors[model].gmacs(expected.frames)


def test_wrong_parameters(address, videos) -> None:
    for query in (
        *("frames=0", "frames=4&frames=", "frames=17", "frames=4&" * 9, "model=big"),
        *("top=nan", f"name={'x' * 201}", "frame=8&top=0"),
    ):
        status, answer = post(address, f"/api/predict?{query}", videos[0].read_bytes())
        assert status in (400, 422)
        assert query.partition("=")[0] in str(answer["detail"])


def post(address: str, path: str, body: bytes, **headers: str) -> tuple[int, dict]:
    answer = ask(address, "POST", path, body, headers)
    return answer.status, json.loads(answer.read())


def test_a_name_is_a_text_only(address, videos) -> None:
    for name in ("../../etc/passwd", "\U0001f600 \x00\x1b[31m", "<b>", "%s {0}"):
        path = f"/api/predict?{urlencode({'name': name, 'frames': 2})}"
        status, answer = post(address, path, videos[0].read_bytes())
        assert (status, answer["predictions"][0]["name"]) == (200, name)
        status, answer = post(address, path, b"hello")
        assert (status, answer["detail"].startswith(name)) == (422, True)


def test_other_methods_routes_and_forms(address) -> None:
    assert ask(address, "GET", "/api/predict").status in (404, 405)
    assert ask(address, "GET", "/api/predictions").status == 404
    assert ask(address, "HEAD", "/health").status == 200
    assert post(address, "/api/predict", b"--x--", **FORM)[0] == 415


def test_requests_beyond_the_limit_and_clients_that_close(address, client, videos) -> None:
    host, port = address.removeprefix("http://").split(":")
    head = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n1234"
    waiting = [socket.create_connection((host, int(port))) for _ in range(LIMITS.max_requests)]
    for connection in waiting:
        connection.sendall(head)
    time.sleep(1)
    answer = ask(address, "POST", "/api/predict", videos[0].read_bytes())
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert client.healthy()
    for connection in waiting:
        connection.close()
    time.sleep(1)
    assert client.predict(videos[0])["frames"] == 8


def test_a_service_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}")
    assert refused(client, b"1234")[0] == 0
    assert not client.healthy()
    with pytest.raises(ValueError, match="localhost:7860"):
        Client("localhost:7860")


def test_the_client_needs_the_standard_library_only(address, videos) -> None:
    code = "import runpy, sys; Client = runpy.run_path(sys.argv[1])['Client']; print(Client"
    code += "(sys.argv[2]).predict(sys.argv[3], 4)['frames'], 'ffn' in sys.modules)"
    arguments = [Path(client_file), address, videos[0]]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("4 False\n", "")
