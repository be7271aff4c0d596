"""What another thread does in its own time, waited for."""

import time
from collections.abc import Callable

_LIMIT_S = 60  # for a machine that stalls: seconds have been seen


def wait_for(holds: Callable[[], bool]) -> None:
    """AssertionError where it does not come to hold."""
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
