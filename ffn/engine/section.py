"""A section of options: a pydantic model that reads text as YAML and command lines give it."""

from __future__ import annotations

import os
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=1)]
NULLS = ("", "~", "null", "Null", "NULL")


class Section(BaseModel):
    """Options with types, ranges and meanings; unknown names and wrong values raise.

    The declared type decides what a text means: ``off`` is false for a flag, and a name for a name.
    """

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

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
