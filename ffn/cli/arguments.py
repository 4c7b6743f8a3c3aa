"""Argument types and options that several commands share."""

from __future__ import annotations

import argparse

from ffn.registry import import_extensions


def positive_int(text: str) -> int:
    """An integer of 1 or more, as ``type=`` of an argparse option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 1 or more")
    return int(text)


def add_imports_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--imports``; :func:`load_imports` imports the packages."""
    parser.add_argument(
        "--imports",
        nargs="+",
        default=[],
        metavar="PACKAGE",
        help="your own packages that register models, tasks, data sets or export formats",
    )


def load_imports(given: argparse.Namespace) -> None:
    """Import the packages that ``--imports`` names.

    Raises:
        ffn.registry.ExtensionError: a package cannot be imported.
    """
    import_extensions(given.imports)
