"""``tools/compare.py FOLDER…``: compare networks that were cross-validated on the same folds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ffn.cli.arguments import refuse_existing
from ffn.cli.program import Parser, called_as, fail, program

FORMAT = 1  # of the JSON file


@program("compare", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, compare, print and write; returns the exit status."""
    given = _parser().parse_args(arguments)

    try:
        text, files = _compare(given)
    except (ValueError, OSError, ImportError) as error:
        return fail("compare", error)
    print(text)
    for file in files:
        print(file)
    return 0


def _compare(given: argparse.Namespace) -> tuple[str, list[Path]]:
    """The tables, and the files STEM.json, STEM.md and STEM.png if they are written."""
    from ffn.cli.plot_log import named
    from ffn.evaluation.comparison import compare, comparison_table, save_comparison_figure
    from ffn.evaluation.cross_validation_folder import CrossValidationFolder
    from ffn.files import write_text

    folders = named(given.folders)
    found = [CrossValidationFolder(path).load_finished(name) for name, path in folders.items()]
    comparison = compare(found)
    text = comparison_table(comparison)
    if given.output is None:
        return text, []
    stem = Path(given.output)
    files = [stem.with_name(stem.name + suffix) for suffix in (".json", ".md", ".png")]
    read = [path / name for path in folders.values() for name in ("results.json", "plan.json")]
    for file in files:
        refuse_existing(file, given.overwrite, inputs=read)
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_text(files[0], json.dumps({"format": FORMAT, **comparison}, indent=1) + "\n")
    write_text(files[1], text)
    save_comparison_figure(comparison, files[2])
    return text, files


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("compare"),
        description="Compare networks that ffn crossvalidate trained and tested on the "
        "same folds: accuracies with confidence intervals, and paired differences from the first "
        "network. See docs/cross_validation.md.",
    )
    option = parser.add_argument
    option(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="--output of ffn crossvalidate; first the network to compare with",
    )
    option(
        "--output",
        metavar="STEM",
        help="path of the .json, .md and .png file, without suffix; default: print only",
    )
    option("--overwrite", action="store_true", help="replace existing files")
    return parser
