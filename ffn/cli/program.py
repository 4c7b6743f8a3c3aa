"""Run a command: print its errors, return its exit status."""

from __future__ import annotations

import argparse
import difflib
import functools
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ffn.files import explain

EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PIPE = 2, 130, 141  # 128 + signal for the last two


def run(program: str, command: Callable[[], int | None]) -> int:
    """Call a command; its errors and Ctrl-C are messages, without traceback.

    Args:
        program: its name in messages, e.g. "ffn train".
        command: returns its exit status, None for 0.

    Returns:
        The exit status: `EXIT_FAILED` for an error whose message is for the user,
        `EXIT_INTERRUPTED` after Ctrl-C, `EXIT_PIPE` if nobody reads the output any more.
    """
    try:
        try:
            return command() or 0
        finally:
            if sys.stdout is not None:  # as after `>&-` in a shell
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes again at its end, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except Exception as error:
        if not _is_for_users(error):
            raise
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # all processes have the same error
            print(f"{program}: {explain(error)}", file=sys.stderr)
        return EXIT_FAILED


def _is_for_users(error: Exception) -> bool:
    """Whether the message of an error names the cause and the remedy: ours, and those of files."""
    ours = type(error).__module__.startswith("ffn.")
    return ours or isinstance(error, (ValueError, OSError, ImportError, FloatingPointError))


# The rest of this file serves the commands that are still written with argparse.

Main = Callable[[Sequence[str] | None], int]


def called_as(command: str) -> str:
    """``ffn train``."""
    return f"ffn {command}"


prefix = called_as


def fail(command: str, error: Exception) -> int:
    """Print the message of an error; returns the exit status."""
    if isinstance(error, BrokenPipeError):
        raise error  # of the console: `program` ends the command
    print(f"{prefix(command)}: {explain(error)}", file=sys.stderr)
    return EXIT_FAILED


def fail_once(command: str, error: Exception) -> int:
    """:func:`fail`, printed by one process of each machine: all have the same error."""
    return fail(command, error) if int(os.environ.get("LOCAL_RANK", 0)) == 0 else EXIT_FAILED


def prints_safely(main: Callable[..., int]) -> Callable[..., int]:
    """Decorator of a main: what it prints never ends it with a traceback.

    A pipe that its reader has closed ends it with `EXIT_PIPE`. A character that the encoding of the
    console lacks is printed as ``\\u2026``.
    """

    @functools.wraps(main)
    def run(*arguments: Any) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does by itself
        try:
            try:
                return main(*arguments)
            finally:
                if sys.stdout is not None:  # as after `>&-` in a shell
                    sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes again at its end, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_PIPE

    return run


def program(command: str, interrupted: str) -> Callable[[Main], Main]:
    """Decorator of a command's main: Ctrl-C and a closed pipe end it without a traceback.

    Args:
        command: its name.
        interrupted: how to go on after Ctrl-C, for the message.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(arguments: Sequence[str] | None = None) -> int:
            try:
                return prints_safely(main)(arguments)
            except KeyboardInterrupt:
                print(f"\n{prefix(command)}: interrupted; {interrupted}", file=sys.stderr)
                return EXIT_INTERRUPTED

        return run

    return decorate


class Parser(argparse.ArgumentParser):
    """argparse's parser, with the closest option in the message about an unknown one."""

    _given: Sequence[str] = ()

    def parse_with_overrides(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command that takes ``key=value`` options: they may stand in any position.

        They are in ``options`` of the result, in their order.
        """
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        overrides, rest, single = [], [], False
        for text in arguments:
            is_override = not single and _is_override(text)
            (overrides if is_override else rest).append(text)
            single = self._takes_one_value(text)
        given = self.parse_intermixed_args(rest)
        given.options = [*given.options, *overrides]
        return given

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's; the arguments are kept for messages."""
        given = sys.argv[1:] if args is None else list(args)
        self._given = max(self._given, given, key=len)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> None:
        """Print the message with a hint about unknown options, and exit."""
        known = self._known()
        given = [text.partition("=")[0] for text in self._given if text.startswith("--")]
        unknown = [name for name in given if not any(k.startswith(name) for k in known)]
        if unknown and message.startswith("unrecognized arguments"):
            message = f"no option {unknown[0]}{self._hint(unknown[0], known)}"
        elif unknown and message.startswith("the following arguments are required"):
            message += f"; no option {unknown[0]}{self._hint(unknown[0], known)}"
        super().error(message)

    def _known(self) -> list[str]:
        """All option names, also of subcommands."""
        commands = [a.choices for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        parsers = [self, *(parser for choices in commands for parser in choices.values())]
        return [name for parser in parsers for name in parser._option_string_actions]

    def _takes_one_value(self, text: str) -> bool:
        action = self._option_string_actions.get(text)
        return action is not None and action.nargs is None

    def _hint(self, option: str, known: Sequence[str]) -> str:
        """What was probably meant by an unknown option."""
        if any(action.dest == "options" for action in self._actions):
            keys = _config_keys(option.lstrip("-").replace("-", "_"))
            if keys:
                value = self._value(option)
                shown = " or ".join(f"{key}={value}" for key in keys)
                return f"; options of the config are given as key=value: {shown}"
        close = difflib.get_close_matches(option, known, n=1)
        return f"; did you mean {close[0]}?" if close else "; --help lists all"

    def _value(self, option: str) -> str:
        """The value that follows an option, e.g. ``3`` of ``--epochs 3`` or ``--epochs=3``."""
        place = next(i for i, text in enumerate(self._given) if text.partition("=")[0] == option)
        value = self._given[place].partition("=")[2]
        following = self._given[place + 1 : place + 2]
        return value or next((text for text in following if not text.startswith("-")), "VALUE")


def _is_override(text: str) -> bool:
    return bool(re.match(r"[A-Za-z_]\w*(\.\w+)*=", text)) and not os.path.exists(text)


def _config_keys(name: str) -> list[str]:
    """Keys of the options of a config with this name, or with its meaning in other projects."""
    from ffn.engine.config import option_keys

    keys = option_keys()
    return [key for key in keys if name in (key, key.partition(".")[2])]
