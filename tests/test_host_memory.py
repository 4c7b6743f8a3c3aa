"""Memory that a step frees is kept for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Pages that the system provides for ten blocks of 8 MB, allocated and freed in turn.
PAGES = """
import resource, torch
from ffn.host_memory import keep_freed_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2, 1 << 20) + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

default = pages()
done = keep_freed_memory()
pages()
print(done, default, pages())
"""


def measure(**variables: str) -> tuple[bool, int, int]:
    """Whether it was set; page faults before, and after."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PAGES]
    out = subprocess.check_output(command, text=True, env={**clean, **variables})
    done, before, after = out.split()
    return done == "True", int(before), int(after)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept() -> None:
    done, before, after = measure(MALLOC_ARENA_MAX="1")
    assert done
    assert before > 20  # of 4 KB, or of 2 MB
    assert after < before / 10


def test_settings_of_the_user_stay() -> None:
    done, _, _ = measure(MALLOC_TRIM_THRESHOLD_="131072")
    assert not done
