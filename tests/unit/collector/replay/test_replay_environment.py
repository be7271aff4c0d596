"""The environment of a session's process."""

import platform
import subprocess
import sys

import pytest

from collector.replay.process import session_environment

# Like an operator's launches: two inputs, and an output that is freed before the next one.
_LAUNCHES = """
import ctypes, resource
libc = ctypes.CDLL(None)
def block(mib):
    pointer = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(pointer), 64, mib << 20) == 0
    ctypes.memset(pointer, 1, mib << 20)
    return pointer
inputs = block(24), block(48)
libc.free(block(48))
warm = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(9):
    libc.free(block(48))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - warm)
"""


def faults(environment):
    """Return how many pages the launches after the first took from the kernel."""
    command = [sys.executable, "-S", "-c", _LAUNCHES]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, timeout=60, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="requires the allocator of glibc")
def test_launches_of_a_cpu_session_allocate_no_new_memory():
    reported = session_environment("cpu")
    assert faults(reported) < 100
    assert faults({**reported, "GLIBC_TUNABLES": ""}) > 10_000  # 12,288 pages an output


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.libc_ver()[1] > "2.37",
    reason="requires glibc before 2.38",
)
def test_malloc_tunables_without_the_other_settings_cause_page_faults():
    alone = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"
    assert faults({**session_environment("cpu"), "GLIBC_TUNABLES": alone}) > 10_000
