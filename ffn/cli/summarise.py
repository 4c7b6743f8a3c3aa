"""``tools/summarise.py RESULTS… --output STEM``: mean and spread over seeds, table and figure."""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from ffn.cli.arguments import refuse_existing
from ffn.cli.program import Parser, called_as, fail, program

TITLES = {"top1": "Top-1 accuracy (%)", "map": "Mean average precision (%)"}


@program("summarise", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, average, write; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        files = _summarise(given)
    except (ValueError, OSError, ImportError) as error:
        return fail("summarise", error)
    print(files[1].read_text(encoding="utf-8"))
    for file in files:
        print(file)
    return 0


def _summarise(given: argparse.Namespace) -> list[Path]:
    """Write STEM.json, STEM.md and STEM.png."""
    from ffn.evaluation import save_figure
    from ffn.evaluation.seeds import (
        FORMAT,
        SEPARATE,
        check_same_measure,
        differences,
        group_by_run,
        load_seeds,
        markdown_table,
        mean_sweep,
        separate_networks,
        summarise,
    )
    from ffn.files import write_text

    runs = group_by_run([sweep for path in given.results for sweep in load_seeds(path)])
    if given.separate:
        runs[SEPARATE] = separate_networks(runs, given.separate)
    named = {*(given.figure or ()), *filter(None, [given.against])}
    unknown = sorted(named - set(runs))
    if unknown:
        raise ValueError(f"no run {unknown[0]!r}; the runs are {', '.join(runs)}")
    summary = {run: summarise(seeds) for run, seeds in runs.items()}
    measure = check_same_measure(summary)
    text = markdown_table(given.title or TITLES[measure], summary)
    if given.against:
        text += "\n" + differences(summary, given.against)

    stem = Path(given.output)
    files = [stem.with_name(stem.name + suffix) for suffix in (".json", ".md", ".png")]
    for file in files:
        refuse_existing(file, given.overwrite, inputs=given.results)
    stem.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "title": given.title or TITLES[measure], "runs": summary}
    write_text(files[0], json.dumps(content, indent=1) + "\n")
    write_text(files[1], text)
    joined = fnmatch.filter(runs, given.separate) if given.separate else []
    shown = given.figure or [run for run in runs if run not in joined]
    save_figure([mean_sweep(run, runs[run], summary[run]) for run in shown], files[2])
    return files


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("summarise"),
        description="Average the results.json files of ffn test over the seeds of each "
        "run. Runs that differ in their seed alone are named <run>.s<seed>, e.g. "
        "motion_flexible.s0. An earlier STEM.json adds its seeds.",
    )
    option = parser.add_argument
    option(
        "results",
        nargs="+",
        help="results.json files of ffn test, or STEM.json of earlier summaries",
    )
    option(
        "--output",
        required=True,
        metavar="STEM",
        help="path of the .json, .md and .png file, without suffix",
    )
    option("--title", help="first words of the table; default: the metric, e.g. Top-1 accuracy")
    option(
        "--against",
        metavar="RUN",
        help="add a table of differences from this run, for runs with the same trained counts",
    )
    option(
        "--separate",
        metavar="PATTERN",
        help="add a run `separate networks`: at each count, the network that was trained at it, of "
        "the runs whose names match, e.g. 'plain_*'; the figure has it in their place",
    )
    option("--figure", nargs="*", metavar="RUN", help="runs in the figure; default: all")
    option("--overwrite", action="store_true", help="replace existing files")
    return parser
