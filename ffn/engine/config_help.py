"""The list of all options that ``tools/train.py --help`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from ffn.engine.options import Config
from ffn.engine.tasks import TASKS, TaskOptions


def option_help() -> str:
    """One line per option: key, default, meaning, choices; those of each task under its name."""
    lines: list[str] = []
    for key, option in _options(Config):
        lines += _task_help() if key == "task" else [_help_line(key, option)]
    return "\n".join(lines)


def _task_help() -> list[str]:
    common = {field.name for field in fields(TaskOptions)}
    lines = [_help_line(f"task.{field.name}", field) for field in fields(TaskOptions)]
    lines[0] += f" ({', '.join(sorted(TASKS))})"
    for name, task in TASKS.items():
        own = [field for field in fields(task.Options) if field.name not in common]
        lines += [f"{_help_line(f'task.{f.name}', f)} [task.name={name}]" for f in own]
    return lines


def _help_line(key: str, option: Field) -> str:
    default = option.default if option.default is not MISSING else option.default_factory()
    limits = str(option.metadata.get("range") or "")
    if limits and isinstance(default, list):
        limits = f"each {limits}"
    if isinstance(default, Enum):
        limits = "|".join(choice.value for choice in type(default))
    more = f" ({limits})" if limits else ""
    return f"  {f'{key}={default_text(default)}':<44} {option.metadata.get('help', '')}{more}"


def default_text(default: Any) -> str:
    """A default as YAML, except for the blanks in lists."""
    words = {None: "null", True: "true", False: "false"}
    is_word = default is None or isinstance(default, bool)
    return words[default] if is_word else str(getattr(default, "value", default))


def _options(cls: type, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Key and field of every option below a dataclass; the section ``task`` as one field."""
    for option in fields(cls):
        factory = option.default_factory
        if option.name != "task" and isinstance(factory, type) and is_dataclass(factory):
            yield from _options(factory, f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{option.name}", option
