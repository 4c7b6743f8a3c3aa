"""Run a command: print its errors, return its exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from ffn.files import explain, is_for_users
from ffn.interrupts import EXIT_INTERRUPTED
from ffn.registry import is_raised_in_extension

EXIT_FAILED, EXIT_PIPE = 2, 141  # 128 + SIGPIPE


def run(program: str, command: Callable[[], int | None]) -> int:
    """Call a command; its errors and Ctrl-C are messages, without traceback.

    Args:
        program: its name in messages, e.g. "ffn train".
        command: returns its exit status, None for 0.

    Returns:
        The exit status: that of an error whose message is for the user, by default `EXIT_FAILED`,
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
        if not is_for_users(error):
            raise
        if is_raised_in_extension(error):  # the message alone does not name the line
            traceback.print_exc()
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:  # all processes have the same error
            print(f"{program}: {explain(error)}", file=sys.stderr)
        return getattr(error, "exit_status", EXIT_FAILED)
