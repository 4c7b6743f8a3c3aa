"""Fixtures: numbered videos."""

from video_fixtures import numbers, write_folder, write_video

__all__ = ["numbers", "write_folder", "write_video"]
