"""What a session's process finds in its environment."""

import os
import platform
import subprocess
import sys

import pytest

from collector.replay.process import session_environment

# Outputs as an operator's: aligned, of two sizes in turn, with small pieces between them.
_LAUNCHES = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
kept = []
def launch():
    outputs = []
    for size in (48 << 20, 9 << 20, 48 << 20):
        block = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
        ctypes.memset(block, 1, size)
        kept.append(libc.malloc(64))
        outputs.append(block)
    for block in outputs:
        libc.free(block)
for _ in range(4):
    launch()
warm = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(12):
    launch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - warm)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc is told")
def test_launches_of_a_cpu_session_take_no_new_memory():
    def faults(environment):
        command = [sys.executable, "-S", "-c", _LAUNCHES]
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=60, text=True
        )
        return int(done.stdout)

    bare = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    assert faults(session_environment("cpu")) < 100
    assert faults(bare) > 10_000  # 105 MB a launch, in pages of 4 KiB
