"""The commands of ffn as a user types them, for messages."""

from __future__ import annotations

import sys
from pathlib import Path


def command(name: str) -> str:
    """``tools/pack.py`` if a program in a folder ``tools`` runs, as in a clone; else ``ffn pack``.

    An installed package has no folder ``tools``.
    """
    running = Path(sys.argv[0]) if sys.argv else Path()
    in_clone = running.suffix == ".py" and running.parent.name == "tools"
    return f"tools/{name}.py" if in_clone else f"ffn {name}"
