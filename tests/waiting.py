"""Waits for an effect of another thread."""

import time
from collections.abc import Callable

_LIMIT_S = 60  # for a machine that stalls: stalls of seconds have been observed


def wait_for(holds: Callable[[], bool]) -> None:
    """AssertionError where it does not become true."""
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)
