"""Fixtures: numbered videos, start methods of loader workers, and clip stores on a web server."""

from contextlib import ExitStack

import pytest
from range_server import RangeServer
from store_clips import packed
from video_fixtures import numbers, write_folder, write_video

from ffn.data import ClipStore, loader
from ffn.data.store import remote

__all__ = [
    "expected",
    "folder",
    "numbers",
    "root",
    "start_method",
    "start_store",
    "write_folder",
    "write_video",
]


@pytest.fixture(params=["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def start_method(request, monkeypatch):
    """Start method of the workers of `make_loader`."""
    monkeypatch.setattr(loader, "worker_start_method", lambda: request.param)
    return request.param


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folder of the videos of a file of tests, which defines `records`."""
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="module")
def folder(root, records):
    """The store of these videos."""
    return packed(root, records, root / "s")


@pytest.fixture(scope="module")
def expected(folder, root, records):
    """All frames of each video."""
    videos = [ClipStore(folder, root=root).open_record(record) for record in records]
    return [video.read(range(len(video))) for video in videos]


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
