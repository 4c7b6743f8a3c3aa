"""Fixtures: numbered videos, and start methods of loader workers."""

import pytest
from video_fixtures import numbers, write_folder, write_video

from ffn.data import loader

__all__ = ["numbers", "start_method", "write_folder", "write_video"]


@pytest.fixture(params=["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def start_method(request, monkeypatch):
    """Start method of the workers of `make_loader`."""
    monkeypatch.setattr(loader, "worker_start_method", lambda: request.param)
    return request.param
