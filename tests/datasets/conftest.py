"""Fixtures that write miniature data sets."""

from __future__ import annotations

import pytest
from preparation_layouts import Layouts


@pytest.fixture
def layouts(tmp_path, write_video, write_folder):
    """Writer of miniature data sets into a folder of the test's own."""
    return Layouts(tmp_path / "set", write_video, write_folder)
