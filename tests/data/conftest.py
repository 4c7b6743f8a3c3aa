"""Fixtures: numbered videos, start methods of loader workers, and clip stores on a web server."""

from contextlib import ExitStack

import pytest
from video_fixtures import numbers, write_folder, write_video

from ffn.benchmarks.range_server import RangeServer
from ffn.data import ClipStore, loader
from ffn.data.store import remote

__all__ = ["numbers", "start_method", "start_store", "write_folder", "write_video"]


@pytest.fixture(params=["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def start_method(request, monkeypatch):
    """Start method of the workers of `make_loader`."""
    monkeypatch.setattr(loader, "worker_start_method", lambda: request.param)
    return request.param


@pytest.fixture
def start_store(tmp_path, monkeypatch):
    """Serve a store by http, and open it for range requests; `start(folder, root, ...)`."""
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    with ExitStack() as running:

        def start(folder, root, *, handler=None, **more):
            server = running.enter_context(RangeServer(folder, handler=handler).running())
            options = {"root": root, "cache": tmp_path / "cache", "access": "ranges", **more}
            store = ClipStore(server.address, **options)
            server.forget()
            return server, store

        yield start
