"""Read values of options: YAML as text, converted to the type that an option declares.

The declared type decides what a text means: ``off`` is false for a flag, and a name for a name.
"""

from __future__ import annotations

import os
import re
import reprlib
import types
from collections import Counter
from enum import Enum
from typing import Any, Union, get_args, get_origin

import yaml
from yaml import MarkedYAMLError
from yaml.constructor import ConstructorError
from yaml.reader import ReaderError

from ffn.plain_yaml import PlainLoader

FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
NULLS = ("", "~", "null", "Null", "NULL")
INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
NUMBER = re.compile(
    r"[+-]?(([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|\.?inf|\.?nan)", re.IGNORECASE
)


class _TextLoader(PlainLoader):
    """Reads mappings and lists of texts and None; a key may not be given twice."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            twice = [key for key, times in keys.items() if times > 1 and key != "<<"]
            if twice:
                raise ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_KEPT = ("null", "merge")
_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.endswith(_KEPT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_TextLoader.yaml_constructors = {
    tag: function
    for tag, function in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith((":null", ":str", ":seq", ":map"))
}


def read_yaml(text: str) -> Any:
    """Read YAML as mappings, lists, texts and None.

    Raises:
        ValueError: it is invalid; the message has the line and the cause.
    """
    try:
        return yaml.load(text, _TextLoader)
    except yaml.YAMLError as error:
        raise ValueError(_cause(error, text)) from error
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def key_lines(text: str) -> dict[str, int]:
    """The line of each key and each ``section.key`` of YAML that :func:`read_yaml` reads."""
    root = yaml.compose(text, _TextLoader)
    found: dict[str, int] = {}
    for section, options in root.value if isinstance(root, yaml.MappingNode) else ():
        found[section.value] = section.start_mark.line + 1
        for key, _ in options.value if isinstance(options, yaml.MappingNode) else ():
            found[f"{section.value}.{key.value}"] = key.start_mark.line + 1
    return found


def _cause(error: yaml.YAMLError, text: str) -> str:
    """Line and cause of a YAML error, on one line."""
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"line {line}: control character {chr(error.character)!r}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        cause = " ".join(str(error.problem).split())
        if "for the tag" in cause:
            cause = "tags (!name) are not read"
        return f"line {error.problem_mark.line + 1}: {cause}"
    return " ".join(str(error).split())


def read_override(text: str) -> Any:
    """Read the value of ``key=value``: YAML if it starts with a bracket or quote, else text.

    Raises:
        ValueError: the YAML is invalid.
    """
    text = text.strip()
    if text.startswith(("[", "{", '"', "'")):
        return read_yaml(text)
    return None if text in NULLS else text


def convert(value: Any, kind: Any, *, inner: bool = False) -> Any:
    """Convert a value to the type of an option.

    Args:
        value: text, None, list or mapping of :func:`read_yaml`, or a plain value of Python.
        kind: bool, int, float, str, an Enum, ``X | None``, ``list[X]``, ``dict[str, X]`` or Any.
        inner: the value is an item of a list.

    Raises:
        ValueError: the value has another type; :func:`expected` says which one is accepted.
    """
    optional, kind = _split_optional(kind)
    origin = get_origin(kind)
    if kind is Any or (value is None and optional):
        return value
    if origin is list:
        (item,) = get_args(kind)
        if isinstance(value, (list, tuple)):
            return [convert(one, item, inner=True) for one in value]
        if value is None or get_origin(item) is list or inner:
            raise ValueError(value)
        return [convert(value, item)]  # a single value is a list of it
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(value)
        return {str(key): convert(one, get_args(kind)[1]) for key, one in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value if isinstance(value, kind) else kind(value)
    return _scalar(value, kind)


def _scalar(value: Any, kind: type) -> Any:
    if isinstance(value, str):
        if kind is str and "${" not in value:
            # A shell does not replace it after "key=".
            return os.path.expanduser(value) if value.startswith("~/") else value
        if kind is bool and value.lower() in FLAGS:
            return FLAGS[value.lower()]
        if kind is int and INTEGER.fullmatch(value) and len(value) < 100:
            return int(value)
        if kind is float and NUMBER.fullmatch(value):
            return float(value.lower().replace(".inf", "inf").replace(".nan", "nan"))
    elif type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    raise ValueError(value)


def expected(kind: Any, *, many: bool = False) -> str | None:
    """The values of a type in words; None for a type that options cannot have."""
    optional, kind = _split_optional(kind)
    if optional:
        inner = expected(kind)
        return None if inner is None else f"{inner} or null"
    if kind is Any:
        return "any value"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of [{', '.join(choice.value for choice in kind)}]"
    if get_origin(kind) is list:
        inner = expected(get_args(kind)[0], many=True)
        return inner and f"{'lists' if many else 'a list'} of {inner}"
    if get_origin(kind) is dict:
        inner = expected(get_args(kind)[1], many=True)
        return inner and f"a mapping of names to {inner}"
    one = {bool: "true or false", int: "an integer", float: "a number", str: "text"}.get(kind)
    return {"an integer": "integers", "a number": "numbers"}.get(one, one) if many else one


def shown(value: Any) -> str:
    """A value for messages: on one line, shortened."""
    found = reprlib.Repr()
    found.maxstring = found.maxother = 60
    return found.repr(value)


def _split_optional(kind: Any) -> tuple[bool, Any]:
    """Whether a type accepts None, and the type without it."""
    if get_origin(kind) in (Union, types.UnionType):
        others = [one for one in get_args(kind) if one is not type(None)]
        if len(others) == 1:
            return True, others[0]
    return False, kind
