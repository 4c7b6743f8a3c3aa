"""``tools/zoo.py list|fetch|verify|table``: list, download and check weights; list models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ffn.cli.arguments import add_imports_argument, load_imports
from ffn.cli.program import Parser, called_as, fail, prefix, program
from ffn.cli.zoo_page import CLASSES, FRAMES, SIDE, models_table, page, weights_table
from ffn.files import write_text

EXIT_PROBLEM = 1  # some weights could not be fetched, or differ


@program("zoo", "the same command continues")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    given = _parser().parse_args(arguments)
    return given.run(given)


def _list(given: argparse.Namespace) -> int:
    from ffn.zoo import list_models

    sizes = {"frames": given.frames, "side": given.side, "num_classes": given.classes}
    sizes = {key: value for key, value in sizes.items() if value is not None}
    if (sizes or given.imports) and not given.models:
        given.refuse("--frames, --side, --classes and --imports need --models")
    try:
        if not given.models:
            print(weights_table(_names(given.pattern)), end="")
            return 0
        load_imports(given)
        names = list_models(given.pattern) or [given.pattern]
        print(models_table(names, **sizes), end="")
    except (ValueError, ImportError) as error:
        return fail("zoo", error)
    return 0


def _fetch(given: argparse.Namespace) -> int:
    """Download all that are named; one that fails does not stop the others."""
    from ffn.zoo import WeightsError, fetch_weights, sha256_of

    failed: list[str] = []
    for name in dict.fromkeys(_expanded(given.names)):
        try:
            path = fetch_weights(name)
            size, digits = path.stat().st_size, sha256_of(path)
        except (WeightsError, ValueError, OSError) as error:
            fail("zoo", error)
            failed.append(name)
            continue
        print(f"{name}: {path}, {size:,} bytes, sha256 {digits}", flush=True)
    if failed:
        print(f"{prefix('zoo')}: not fetched: {', '.join(failed)}", file=sys.stderr)
    return EXIT_PROBLEM if failed else 0


def _verify(given: argparse.Namespace) -> int:
    from ffn.zoo import WeightsError, verify_weights

    problems = count = 0
    try:
        for verdict in verify_weights(given.pattern):
            detail = f": {verdict.detail}" if verdict.detail else ""
            print(f"{verdict.status:<14}  {verdict.name}{detail}", flush=True)
            problems += verdict.is_problem
            count += 1
    except (WeightsError, OSError) as error:
        return fail("zoo", error)
    if not count:
        return fail("zoo", ValueError(f'no weights "{given.pattern}" in the zoo or the cache'))
    return EXIT_PROBLEM if problems else 0


def _table(given: argparse.Namespace) -> int:
    from ffn.zoo.records import zoo_folder

    folder = zoo_folder().parent
    if not given.write:
        print(page(folder), end="")
        return 0
    try:
        write_text(folder / "README.md", page(folder))
    except OSError as error:
        return fail("zoo", error)
    print(folder / "README.md")
    return 0


def _names(pattern: str) -> list[str]:
    """Names in the zoo that match a pattern.

    Raises:
        ValueError: there is none.
    """
    from ffn.zoo import find_record, list_weights

    found = list_weights(pattern)
    if not found:
        find_record(pattern)  # raises: the message has the closest names
    return found


def _expanded(names: Sequence[str]) -> list[str]:
    """The names, with patterns replaced by the names that match; without a match as they are."""
    from ffn.zoo import list_weights

    return [found for name in names for found in (list_weights(name) or [name])]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("zoo"),
        description="List, download and check the weights of the zoo, or list models and their "
        "cost.",
        epilog="Each subcommand has its own --help. The environment variable FFN_HOME is the "
        "folder of downloads (default: ~/.cache/ffn), FFN_MIRRORS lists mirrors of it, and "
        "FFN_OFFLINE=1 forbids downloads.",
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="list|fetch|verify|table"
    )
    _add_list(commands)

    text = "download weights and check their SHA-256"
    fetch = commands.add_parser(
        "fetch",
        help=text,
        description=f"{_sentence(text)} Prints path, size and SHA-256 of each. Files that are "
        "there already are only checked, and interrupted downloads are resumed. The exit status is "
        "1 if one failed; the others are fetched.",
    )
    text = "names in the zoo, patterns such as '*sthv1*' or '*' for all, or hf://user/name"
    fetch.add_argument("names", nargs="+", metavar="NAME", help=text)
    fetch.set_defaults(run=_fetch)

    text = "compare local weights with their SHA-256"
    verify = commands.add_parser(
        "verify",
        help=text,
        description="Compare the weights that ship with ffn and those in the folder of downloads "
        "with the SHA-256 of their records, or with that stored at the first download. Prints a "
        "line for each: ok, differs, no hash (none is known), missing, or not downloaded. Nothing "
        "is changed or downloaded. The exit status is 1 if one differs, is missing or has no hash.",
    )
    verify.add_argument("pattern", nargs="?", default="*", help="names to check, e.g. '*sthv1*'")
    verify.set_defaults(run=_verify)

    text = "print the page of the zoo, model_zoo/README.md"
    table = commands.add_parser("table", help=text, description=_sentence(text))
    table.add_argument("--write", action="store_true", help="write the file in place of printing")
    table.set_defaults(run=_table)
    return parser


def _add_list(commands: argparse._SubParsersAction) -> None:
    text = "list weights and their accuracy, or models and their cost"
    command = commands.add_parser("list", help=text, description=_sentence(text))
    command.add_argument("pattern", nargs="?", default="*", help="names to list, e.g. '*sthv1*'")
    command.add_argument("--models", action="store_true", help="list models instead of weights")
    size = command.add_argument_group("with --models")
    shown = " ".join(map(str, FRAMES))
    size.add_argument(
        "--frames", nargs="+", type=int, metavar="T", help=f"frames of a clip; default: {shown}"
    )
    size.add_argument(
        "--side", type=int, metavar="PX", help=f"height and width of a clip; default: {SIDE}"
    )
    size.add_argument(
        "--classes", type=int, metavar="K", help=f"classes of a model; default: {CLASSES}"
    )
    add_imports_argument(size)
    command.set_defaults(run=_list, refuse=command.error)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
