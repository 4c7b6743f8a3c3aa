"""A section of options: a pydantic model that reads text as YAML and command lines give it."""

from __future__ import annotations

import os
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

NULLS = ("", "~", "null", "Null", "NULL")
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class Section(BaseModel):
    """Options with types, ranges and meanings; unknown names and wrong values raise.

    The declared type decides what a text means: ``off`` is false for a flag, and a name for a name.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Null for an option that may be null, one value for a list of it, ``~`` for the home."""
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, str):
            if type(None) in get_args(kind) and value in NULLS:
                return None
            if get_origin(kind) is list:
                return [value]
            if value.startswith("~/"):  # a shell does not replace it after "key="
                return os.path.expanduser(value)
        return value


def limits(option: FieldInfo) -> str:
    """The accepted values of an option: its words, or the range of its numbers.

    >>> from pydantic import Field
    >>> limits(Field(0.5, ge=0, lt=1))
    '>= 0, < 1'
    """
    words = [word for word in get_args(option.annotation) if isinstance(word, str)]
    if words:
        return "|".join(words)
    return ", ".join(_signs(option.metadata) or _item_limits(option.annotation))


def _item_limits(kind: Any) -> list[str]:
    """The range of the items of a list."""
    for item in get_args(kind):
        parts = [m for part in getattr(item, "__metadata__", ()) for m in part.metadata]
        found = _signs(parts)
        if found or get_origin(item) is list:
            return found or _item_limits(item)
    return []


def _signs(limits: list[Any]) -> list[str]:
    return [f"{s} {getattr(m, n)}" for m in limits for n, s in SIGNS.items() if hasattr(m, n)]
