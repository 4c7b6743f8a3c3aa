"""The example runs unchanged, and its network is better than chance."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/convert_your_own.py"


@pytest.mark.slow
def test_it_trains_and_sweeps(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    rows = re.findall(r"│\s+(\d+) │\s+(\d+) │\s+([\d.]+) │", done.stdout)
    subnets = {2: 4, 4: 4, 6: 8, 8: 8, 12: 16, 16: 16, 20: 16}
    assert [(int(t), int(subnet)) for t, subnet, _ in rows] == [*subnets.items()]
    assert float(rows[5][2]) > 2 * 100 / 12  # 16 frames; chance is 1 in 12
