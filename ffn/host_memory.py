"""The memory allocator of a process that runs networks on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# Parameters of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = {M_TRIM_THRESHOLD: -1, M_MMAP_MAX: 0, M_ARENA_MAX: 1}  # -1: nothing is given back
VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
MADV_HUGEPAGE = 14  # of madvise(2)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
STRICT = "2"  # the system counts virtual memory as used

_is_reserved = False


def tune_allocator() -> bool:
    """Let glibc keep freed memory for the next forward pass or step, and use huge pages.

    By default, glibc returns large activations to the system, which has to provide and clear pages
    for them again in the next step. Its pages have 4 KiB, and large tensors have more of them than
    the processor's cache of page addresses (TLB) holds. After this call, all threads of the process
    share one heap, which keeps its memory until the process ends, and Linux is asked for pages of
    2 MiB (transparent huge pages) for it. The commands of ffn call this on a CPU; your own program
    may call it once, at its start.

    For huge pages, the process reserves 0.9 of the machine's memory as virtual memory, without
    using it. It does not where virtual memory is limited (``ulimit -v``, ``-d``, strict
    accounting), or where the setting of the system for huge pages is other than "madvise".

    Returns:
        Whether it was set: not with another C library, and not if the environment has settings of
        the allocator (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``).
    """
    if sys.platform != "linux" or any(name in os.environ for name in VARIABLES):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):  # of another C library
        return False
    if not all(libc.mallopt(*setting) for setting in SETTINGS.items()):
        return False
    _reserve_huge_pages(libc)
    return True


def _reserve_huge_pages(libc: ctypes.CDLL) -> None:
    """Grow the heap once, by virtual memory that gets huge pages when it is used."""
    global _is_reserved
    if _is_reserved or not _can_reserve():
        return
    _is_reserved = True
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    start = libc.sbrk(0)
    # Linux refuses requests that are larger than what the machine has.
    block = libc.malloc(size * 9 // 10) or libc.malloc(size // 2)
    end, page = libc.sbrk(0), os.sysconf("SC_PAGE_SIZE")
    start = -(-start // page) * page
    libc.free(block)
    if end <= start:  # the heap could not grow
        return
    libc.madvise(start, end - start, MADV_HUGEPAGE)
    # protobuf, which ONNX, TensorBoard and wandb use, calls malloc_trim(3) once in 10,000 messages.
    # It would shorten the heap, which would grow again by pages of 4 KiB. glibc leaves a heap as it
    # is if memory of another owner follows, such as this page.
    libc.sbrk(page)


def _can_reserve() -> bool:
    """Whether the system gives huge pages on request, and virtual memory is not limited."""
    import resource  # not on all systems

    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if any(limit != resource.RLIM_INFINITY for limit in limits):
        return False
    try:
        is_asked_for = "[madvise]" in HUGE_PAGES.read_text()
        return is_asked_for and OVERCOMMIT.read_text().strip() != STRICT
    except OSError:  # a system without them
        return False
