from __future__ import annotations

import sys
from pathlib import Path

# So that processes that a test spawns can import `evaluation_toys` too.
sys.path.insert(0, str(Path(__file__).parent))
