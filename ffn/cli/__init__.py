"""The command line ``ffn COMMAND …``.

How a command is written:

1. ``ffn/cli/NAME.py`` has a function ``NAME`` with typed parameters, and `COMMANDS` below has its
   name and one line for ``ffn --help``. Its Google docstring is the help, in Markdown: the text,
   and the parameters in ``Args``. Those before ``/`` are positional, others are options.
   `cyclopts` parses them: ``list[int]`` takes ``--frames 2 4 8``, ``bool`` is a flag, ``Literal``
   a choice, ``int | None = None`` optional. A command with subcommands has a dict
   ``NAME = {"list": list_weights, "fetch": fetch}`` in place of the function; its help is the
   docstring of the module.
2. Types that several commands share, with their help and checks, stand in `ffn.cli.arguments`:
   ``config: ConfigFile, /, *overrides: Override`` (``key=value`` in any position), ``weights:
   Weights``, ``frames: FrameCounts``, ``device: Device``. Those of `cyclopts.types` check numbers
   and files, e.g. ``PositiveInt`` and ``ExistingFile``. A check of our own raises ValueError.
3. The module imports nothing heavy at its top (torch, timm, av, nor ``ffn.engine`` or ``ffn.zoo``):
   help, a typo and a missing file are answered in half a second. The function imports what it needs
   after all that can be checked without it.
4. The function raises its errors, and returns its exit status, or None for 0. `program.run` prints
   ``ffn NAME: MESSAGE`` for ValueError, OSError, ImportError and all errors that ffn defines, and
   returns 2; any other error is a fault of ours and keeps its traceback. Ctrl-C is 130, a closed
   pipe 141.
5. A test calls ``main(["NAME", "argument", …])`` of this package.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from ffn.cli.program import run
from ffn.interrupts import end_at_interrupts, handle_interrupts
from ffn.version import __version__

COMMANDS = {
    "train": "train a network from a config",
    "find_lr": "find the order of magnitude of the learning rate",
    "test": "measure accuracy and cost at several frame counts",
    "early_exit": "fit early exit: more frames only if few are not enough",
    "predict": "label video files",
    "serve": "serve a web page and an HTTP endpoint that label videos",
    "live": "label a camera, a stream or a file while it runs",
    "prepare": "write the index of a data set from its official lists and files",
    "check_data": "decode the videos of a list and report damaged ones",
    "browse": "draw the clips that training and testing give the network",
    "pack": "pack the videos of a config into a clip store, for fast training",
    "convert_checkpoint": "convert a checkpoint of another repository to weights of ffn",
    "publish": "write a trained network as one weight file with its record",
    "export": "write a sub-network in a deployment format",
    "zoo": "list and download weights, or list models and their cost",
    "configs": "list the configs that ship",
    "benchmark": "compare throughput and memory of training, inference and reading",
}


def run_process(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `main`, and end the process with its exit status.

    The exit handlers that were registered meanwhile run, but the objects of torch and timm are not
    destroyed one by one, which takes a second.
    """
    returned = []

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if returned:  # else an error with its traceback, whose status Python sets
            os._exit(returned[0])

    handle_interrupts()
    atexit.register(end)  # the first to be registered is the last to run
    returned.append(main(arguments))
    end_at_interrupts()
    sys.exit(returned[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in the first argument; returns the exit status.

    Args:
        arguments: None are those of the command line.
    """
    # Python would search the million objects of torch and timm for garbage while it imports them.
    gc.set_threshold(100_000)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # of a console with few characters
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = name.replace("-", "_")
    if command in COMMANDS:
        return run(f"ffn {command}", partial(_call, command, rest))
    return run("ffn", partial(_answer, name))


def _call(command: str, arguments: Sequence[str]) -> int | None:
    from ffn.cli.parser import call

    module = importlib.import_module(f"ffn.cli.{command}")
    status = call(f"ffn {command}", getattr(module, command), arguments)
    if command == "train" and {"--help", "-h"} & {*arguments}:
        print(module.config_help())
    return status


def _answer(argument: str) -> None:
    """Answer ``ffn ARGUMENT`` where it is no command."""
    if argument == "--version":
        print(f"ffn {__version__}")
    elif argument in ("--help", "-h"):
        print(_usage())
    else:
        close = difflib.get_close_matches(argument, COMMANDS, n=1)
        hint = f"did you mean `ffn {close[0]}`?" if close else "`ffn --help` lists all"
        raise ValueError(f"no command {argument!r}; {hint}")


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command:<{width}}  {meaning}" for command, meaning in COMMANDS.items()]
    more = "ffn COMMAND --help lists the options, ffn --version prints the version."
    return "\n".join(["usage: ffn COMMAND …", "", *lines, "", more])
