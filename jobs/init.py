"""Process 1 of a container: the work runs in a child, so that orphans can be reaped.

A kernel gives every process whose parent died to process 1, and a profiler leaves some. Who waits
for all of them cannot also wait for its own, so the work is forked away.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
_STOPPED_EARLY = 75


def run_as_init(work: Callable[[], int]) -> int:
    """Run `work` in a child, hand signals on to it, and give its exit code (128 + n for a signal).

    Anywhere else than in process 1 `work` simply runs here.
    """
    if os.getpid() != 1:
        return work()
    # A signal that comes now must reach the child: the kernel drops what process 1 has no handler
    # for, so they wait until there is one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        _be_child(work)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its code is in hand
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _be_child(work: Callable[[], int]) -> NoReturn:
    for number in _FORWARDED:  # until the work has handlers of its own
        signal.signal(number, lambda *_: os._exit(_STOPPED_EARLY))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = 1
    try:
        code = work()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
