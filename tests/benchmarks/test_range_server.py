"""The server that stands for a distant one: its answers, its speed, its counts."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffn.benchmarks.range_server import RangeServer

DATA = bytes(range(256)) * 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "a b.bin").write_bytes(DATA)
    with RangeServer(tmp_path).running() as server:
        yield server


def ask(
    server: RangeServer, path: str, part: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={} if part is None else {"Range": f"bytes={part}"})
    answer = connection.getresponse()
    return answer, answer.read()


def test_answers_and_counts(server: RangeServer) -> None:
    answer, body = ask(server, "/a%20b.bin")
    assert (answer.status, body) == (200, DATA)
    answer, body = ask(server, "/a%20b.bin", "300-999")
    assert (answer.status, body) == (206, DATA[300:1000])
    assert answer.headers["Content-Range"] == f"bytes 300-999/{len(DATA)}"
    assert ask(server, "/a%20b.bin", "102300-999999")[1] == DATA[102300:]
    assert ask(server, "/a%20b.bin", "102400-102401")[0].status == 416
    for path in ("/none", "/../secret", "/"):
        assert ask(server, path)[0].status == 404
    assert server.requests[:2] == [("GET", "a b.bin", None), ("GET", "a b.bin", (300, 999))]
    assert server.sent == len(DATA) + 700 + 100


def test_latency_and_bandwidth(server: RangeServer) -> None:
    server.latency, server.bandwidth = 0.05, len(DATA) / 0.2
    start = time.perf_counter()
    ask(server, "/a%20b.bin")
    assert 0.24 < time.perf_counter() - start < 2
