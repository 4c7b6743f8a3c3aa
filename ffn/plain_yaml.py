"""YAML without aliases, which let a short file stand for an endless value."""

from __future__ import annotations

from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """Reads plain values. An alias (``*name``) raises a ValueError with its line."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse an alias; else the node that follows."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1
            raise ValueError(f"line {line} has an alias (*name); write the value")
        return super().compose_node(parent, index)
