"""Parse the arguments of a typed function."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    ValidationError,
)

Command = Callable[..., int | None]

# Options of a config; they may stand in any position.
OVERRIDE = re.compile(r"(imports|[a-z]+\.[\w.]+)=")


class UsageError(ValueError):
    """The arguments of a command are not valid."""


def call(
    program: str, command: Command | Mapping[str, Command], arguments: Sequence[str]
) -> int | None:
    """Call a command with the arguments of a command line; ``--help`` prints its docstring.

    Args:
        program: its name, e.g. "ffn train".
        command: a function with annotated parameters; of a command with subcommands, their names
            and functions.
        arguments: after the name of the command.

    Returns:
        What the function returns.

    Raises:
        UsageError: an argument is unknown, missing or not valid.
    """
    app = _build(program, command)
    try:
        return app(_overrides_last(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        error.verbose = False
        hint = f"`{program} --help` lists the options"
        parameters = inspect.signature(error.target).parameters if error.target else {}
        if isinstance(error, UnknownOptionError) and "overrides" in parameters:
            hint += "; those of the config are given as key=value, e.g. train.epochs=30"
        message = str(error)
        if isinstance(error, ValidationError) and error.argument:
            message = f"{error.argument.name}: {error.exception_message}"
        if isinstance(error, MissingArgumentError) and not error.keyword:
            expected = error.argument.parameter.help
            message = f"{error.argument.name} is missing" + (f": {expected}" if expected else ".")
        raise UsageError(f"{message} {hint}") from error


def _build(program: str, command: Command | Mapping[str, Command]) -> App:
    options = Group("Options")
    app = App(
        name=program,
        default_parameter=Parameter(
            negative=(), consume_multiple=True, show_default=_shown_default
        ),
        group_parameters=options,
        help_format="markdown",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        version_flags=[],
    )
    if isinstance(command, Mapping):
        app.help = inspect.getmodule(next(iter(command.values()))).__doc__
        for name, function in command.items():
            app.command(function, name=name)
            app[name]["--help"].group = options
    else:
        app.default(command)
    app["--help"].group = options
    return app


def _shown_default(value: object) -> object:
    """The default in the help as it is typed; a flag that is off needs none."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return None if value is False else value


def _overrides_last(arguments: Sequence[str]) -> list[str]:
    """The arguments with the options of a config behind ``--``, where no option takes them."""
    overrides = [text for text in arguments if OVERRIDE.match(text) and not os.path.exists(text)]
    rest = [text for text in arguments if text not in overrides]
    return [*rest, *(["--"] if overrides and "--" not in rest else []), *overrides]
