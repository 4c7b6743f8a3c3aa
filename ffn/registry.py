"""Registries of named classes and functions, and the import of packages that add to them."""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Entry = TypeVar("Entry")

_extensions: set[str] = set()  # top-level packages of import_extensions


class ExtensionError(ImportError):
    """A package that a config or a command names in ``imports`` cannot be imported."""


class Registry(dict[str, Entry]):
    """Entries of one kind by name, in order of registration.

    Args:
        kind: what an entry is, for messages: "model", "task", ….
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator that adds a class or function under a name.

        Raises:
            ValueError: the name belongs to an entry of another module or function.
        """

        def add(entry: Entry) -> Entry:
            if name in self and _origin(self[name]) != _origin(entry):
                raise ValueError(
                    f"the {self.kind} name {name!r} is taken by {_origin(self[name])}; register "
                    f"{_origin(entry)} under another name"
                )
            self[name] = entry
            return entry

        return add

    def __missing__(self, name: str) -> Entry:
        close = difflib.get_close_matches(name, self, n=3) or list(self)
        raise KeyError(
            f'no {self.kind} "{name}"; did you mean {", ".join(close)}? Names of a package of your '
            "own need imports=[PACKAGE] in a config, --imports PACKAGE in other commands"
        )


def import_extensions(names: Iterable[str]) -> None:
    """Import packages that register models, tasks, data sets or export formats.

    They are looked up as Python does, and then in the current folder.

    Args:
        names: dotted module names, e.g. ``my_package.models``.

    Raises:
        ExtensionError: one cannot be imported; the message holds the cause and its line.
    """
    for name in names:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        _extensions.add(str(name).partition(".")[0])
        try:
            importlib.import_module(name)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = "" if last.filename.startswith("<") else f", {last.filename}:{last.lineno}"
            raise ExtensionError(
                f"imports: cannot import {name!r} ({type(error).__name__}: {error}{place}); "
                f"install the package, correct it, or start from the folder that holds it ({here})"
            ) from error


def is_raised_in_extension(error: BaseException) -> bool:
    """Whether an error passed through code of a package of :func:`import_extensions`."""
    frames = traceback.walk_tb(error.__traceback__)
    names = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    return bool(names & (_extensions - {"ffn"}))


def _origin(entry: object) -> str:
    return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', entry)}"
