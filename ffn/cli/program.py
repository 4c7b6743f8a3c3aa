"""Run a command: print its errors, return its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

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
    if isinstance(error, ImportError) and (error.name or "").startswith("ffn."):
        return False  # a fault of ours; other packages may not be installed
    ours = type(error).__module__.startswith("ffn.")
    return ours or isinstance(error, (ValueError, OSError, ImportError, FloatingPointError))
