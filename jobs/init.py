"""Process 1 of a container: the work runs in a child, so that orphans can be reaped.

A kernel gives every process whose parent died to process 1, and a profiler leaves some. Who waits
for all of them cannot also wait for its own, so the work is forked away.
"""

import os
import signal
from collections.abc import Callable
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGINT)


def run_as_init(work: Callable[[], int]) -> int:
    """Run `work` in a child, hand signals on to it, and give its exit code (128 + n for a signal).

    Anywhere else than in process 1 `work` simply runs here.
    """
    if os.getpid() != 1:
        return work()
    child = os.fork()
    if child == 0:
        os._exit(_worked(work))

    def forward(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _worked(work: Callable[[], int]) -> int:
    try:
        return work()
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
