"""Process memory: how much was used, and how to stop giving it back between steps."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path

_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1
_reusing = False


def peak_mb() -> float:
    """Largest resident size of this process so far, in megabytes.

    Linux lets a new process inherit the maximum that getrusage reports from the one that started it; VmHWM is its own.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def reuse_freed_memory() -> None:
    """Let the allocator keep freed memory, in large pages (glibc only; elsewhere nothing happens).

    Activations of every step are freed and needed again at once. By default glibc returns them to the system, and
    touching the same number of fresh pages costs more than most of the arithmetic. Peak memory is not raised: what
    is kept is what was in use. Rows of neighbours lie anywhere in it, and large pages need fewer look-ups of where;
    addresses for half of the machine's memory are set aside for them, which takes none of it until it is used.
    """
    global _reusing
    if _reusing or sys.platform != "linux":
        return
    _reusing = True
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    place = libc.malloc(size)
    if place:
        first = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE
        libc.madvise(first, (place + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
        libc.free(place)
