"""Process 1 of a container runs the work in a child, hands signals on to it, and reaps orphans.

The kernel gives every process whose parent died to process 1, and a profiler leaves some: somebody
has to wait for them, or they stay as zombies. The work waits for its own processes; a second loop
that waits for any would take their exit codes. So process 1 does nothing but wait.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

# What Kubernetes and a person at a terminal send to stop a container.
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
# ExitCode.TEMPORARY: it was stopped before it began, and nobody is to blame.
_STOPPED_EARLY = 75
# A shell's way to say that a signal ended a process: 128 and the number of the signal.
_SIGNAL_BASE = 128


def run_as_pid1(work: Callable[[], int]) -> int:
    """Run `work` in a child and give its exit code; anywhere else than in process 1, run it here.

    Example: work that ends with 43 gives 43; work that the kernel kills (signal 9) gives 137.
    """
    if os.getpid() != 1:
        return work()
    # Phase 1: fork. A signal that comes now must reach the child, and the kernel drops what process
    # 1 has no handler for: so signals wait until both processes have one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        _be_child(work)

    # Phase 2: hand on each signal, first those that have waited.
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its code is in hand
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    # Phase 3: wait for whatever ends, orphans among it, until the child has ended.
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_BASE - code


def _be_child(work: Callable[[], int]) -> NoReturn:
    """The work, and the end of its process: it never returns into what only process 1 does."""
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
