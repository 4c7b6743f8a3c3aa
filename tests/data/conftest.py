"""Fixtures: numbered videos, and ten lossless videos to pack."""

import pytest
from store_clips import write_set
from video_fixtures import numbers, write_folder, write_video

__all__ = ["numbers", "write_folder", "write_video"]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Folder of the videos to pack."""
    return tmp_path_factory.mktemp("set")


@pytest.fixture(scope="session")
def records(root):
    """Ten videos of twelve frames, `videos/0.mkv`, …; the number is the label."""
    return write_set(root, clips=10)
