"""Process memory: how much was used, and how to stop giving it back between steps."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

_M_MMAP_MAX, _M_TRIM_THRESHOLD = -4, -1


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
    """Let the allocator keep freed memory (glibc only; elsewhere nothing happens).

    Activations of every step are freed and needed again at once. By default glibc returns them to the system, and
    touching the same number of fresh pages costs more than most of the arithmetic. Peak memory is not raised: what
    is kept is what was in use.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    except (OSError, AttributeError):
        return
