"""Commands ``ffn train``, ``ffn test``, …; a checkout also has them as ``tools/*.py``."""

from __future__ import annotations

import difflib
import importlib
import sys

from ffn.cli.program import prints_safely
from ffn.version import __version__

COMMANDS = {
    "train": "train a network from a config",
    "find_lr": "find the order of magnitude of the learning rate",
    "plot_log": "draw the curves of training runs",
    "test": "measure accuracy and cost at several frame counts",
    "cascade": "fit and test cascades: more frames only if few are not enough",
    "predict": "label video files",
    "serve": "serve a web page and an HTTP endpoint that label videos",
    "live": "label a camera, a stream or a file while it runs",
    "prepare_data": "write the index of a data set from its official lists and files",
    "check_data": "decode the videos of a list and report damaged ones",
    "browse": "draw the clips that training and testing give the network",
    "pack": "pack the videos of a config into a clip store, for fast training",
    "convert_checkpoint": "convert a checkpoint of another repository to weights of ffn",
    "publish": "write a trained network as one weight file with its record",
    "export": "write a sub-network in a deployment format",
    "crossvalidate": "train and test a config by cross-validation, with confidence intervals",
    "compare": "compare cross-validated networks, with intervals of their differences",
    "summarise": "average test results over the seeds of a run",
    "zoo": "list, download and check weights, or list models and their cost",
    "configs": "list the configs that ship",
    "benchmark": "compare throughput and memory of training, inference and reading",
}


@prints_safely
def main() -> int:
    """Run the command in the first argument; returns the exit status."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("--version", "-V", "version"):
        print(f"ffn {__version__}")
        return 0
    if name == "help" and arguments:
        name, arguments = arguments[0], ["--help"]
    if name in ("--help", "-h", "help"):
        print(_usage())
        return 0
    command = name.replace("-", "_")
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean `ffn {close[0]}`?" if close else ""
        print(f"ffn: no command {name!r}{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(f"ffn.cli.{command}").main(arguments)
    except KeyboardInterrupt:  # while the modules are imported
        print(f"\nffn {command}: interrupted", file=sys.stderr)
        return 130


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command:<{width}}  {meaning}" for command, meaning in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ffn COMMAND …",
            "",
            *lines,
            "",
            "ffn COMMAND --help lists the options, ffn --version prints the version.",
        ]
    )
