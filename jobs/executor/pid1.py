"""Process 1 of a container: runs the work in a child, forwards signals, and reaps orphans.

The kernel reparents every orphan to process 1, and a profiler leaves some: they must be waited for,
or they remain as zombies. The work waits for its own processes; a second loop there that waits for
any process would take their exit codes. So process 1 only waits.
"""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

# The signals that Kubernetes and a user at a terminal send to stop a container.
_FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT})
# ExitCode.TEMPORARY: it was stopped before it started, through no fault.
_STOPPED_EARLY = 75
# A shell reports a process ended by a signal as 128 plus the number of the signal.
_SIGNAL_BASE = 128


def run_as_pid1(work: Callable[[], int]) -> int:
    """Run `work` in a child and return its exit code; outside of process 1, run it directly.

    Example: work that ends with 43 gives 43; work that the kernel kills (signal 9) gives 137."""
    if os.getpid() != 1:
        return work()
    # Phase 1: fork. A signal that arrives now must reach the child, and the kernel drops signals
    # for which process 1 has no handler: so signals are blocked until both processes have one.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        _be_child(work)

    # Phase 2: forward each signal, first the pending ones.
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its exit code is pending
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    # Phase 3: wait for every process that ends, including orphans, until the child has ended.
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_BASE - code


def _be_child(work: Callable[[], int]) -> NoReturn:
    """Run the work and end its process: it never returns to the code of process 1."""
    for number in _FORWARDED:  # until the work sets its own handlers
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
