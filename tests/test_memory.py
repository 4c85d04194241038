"""Memory of the process, each time in one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

REUSE = "from spikegcl.memory import peak_mb, reuse_freed_memory as reuse; before = peak_mb(); reuse(); reuse();"


def in_a_process(script):
    done = subprocess.run([sys.executable, "-c", REUSE + script], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is handled as the system does")
class TestReusingFreedMemory:
    def test_addresses_set_aside_take_no_memory(self):
        assert in_a_process("print(peak_mb() - before)") < 16

    def test_memory_is_used_again_and_not_returned(self):
        script = (
            "import ctypes; libc = ctypes.CDLL(None);"
            "libc.malloc.restype = ctypes.c_void_p; libc.free.argtypes = [ctypes.c_void_p];"
            "take = lambda: libc.malloc(1 << 27); a = take(); ctypes.memset(a, 1, 1 << 27); libc.free(a);"
            "kept = int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20;"
            "b = take(); print(kept if a == b else 0)"
        )
        assert in_a_process(script) > 128
