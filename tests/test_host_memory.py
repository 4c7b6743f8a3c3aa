"""Memory that a step frees is kept for the next one, in huge pages, for all threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from ffn.host_memory import HUGE_PAGES, OVERCOMMIT

# Pages that the system provides for ten blocks of 8 MB, allocated and freed in turn.
PAGES = """
import resource, torch
from ffn.host_memory import tune_allocator

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2, 1 << 20) + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

default = pages()
done = tune_allocator()
pages()
print(done, default, pages())
"""


# kB in use of mappings that ask for huge pages (flag "hg" of madvise(2)). How many the system then
# gives depends on how fragmented its memory is.
ADVISED = """
import re

def advised():
    mappings = open("/proc/self/smaps").read().split("VmFlags:")
    flags = [text.partition("\\n")[0].split() for text in mappings[1:]]
    used = [int(re.search(r"\\nRss: +([0-9]+)", text)[1]) for text in mappings[:-1]]
    return sum(kb for kb, names in zip(used, flags, strict=True) if "hg" in names)
"""

# Page faults of ten blocks in a thread that has allocated before; kB that ask for huge pages; kB of
# addresses.
THREAD = f"""{ADVISED}
import resource, sys, threading, torch
from ffn.host_memory import tune_allocator

if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 45, 1 << 45))
tune_allocator()
tune_allocator()
faults = []

def run():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(20, 1 << 20) + 1
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=run)
thread.start()
thread.join()
kept = torch.ones(32, 1 << 20)
size = re.search(r"VmSize:.([0-9 ]+)", open("/proc/self/status").read())[1]
print(faults[-1], advised(), size)
"""

# kB of 768 MiB in use that ask for huge pages, after what protobuf does to the heap.
TRIMMED = f"""{ADVISED}
import ctypes, torch
from ffn.host_memory import tune_allocator

tune_allocator()
torch.ones(64, 1 << 20)
ctypes.CDLL(None).malloc_trim(0)
kept = [torch.ones(64, 1 << 20) for _ in range(3)]
print(advised())
"""


def run(code: str, *given: str, **variables: str) -> list[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", code, *given]
    return subprocess.check_output(command, text=True, env={**clean, **variables}).split()


def measure(**variables: str) -> tuple[bool, int, int]:
    """Whether it was set; page faults before, and after."""
    done, before, after = run(PAGES, **variables)
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


def reserves() -> bool:
    """Whether the system gives huge pages to a heap that asks for them."""
    is_asked_for = HUGE_PAGES.exists() and "[madvise]" in HUGE_PAGES.read_text()
    return is_asked_for and OVERCOMMIT.read_text().strip() != "2"


@pytest.mark.slow
@pytest.mark.skipif(not reserves(), reason="needs huge pages on request")
def test_malloc_trim_does_not_take_the_heap() -> None:
    """protobuf calls it, also while ONNX files and logs of wandb are written."""
    (advised,) = map(int, run(TRIMMED))
    # The first block may begin in the part of the heap that was free before it asked for them.
    assert advised > 0.98 * 3 * 64 * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_threads_keep_memory_in_huge_pages() -> None:
    faults, advised, addresses = map(int, run(THREAD))
    limited_faults, none, limited = map(int, run(THREAD, "limited"))
    assert max(faults, limited_faults) < 100  # 400,000 of 4 KiB, or 400 of 2 MiB, by default
    if reserves():
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert advised >= 32 * 4096
        assert none == 0
        assert addresses - limited > memory / 1024 / 4  # none are reserved where they are limited
