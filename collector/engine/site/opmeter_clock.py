"""Python's clocks in virtual time (`../runtime/virtual.c`).

What another thread made comes no sooner than it was made there: tasks of thread pools, and results
of futures, have the time with them."""

import ctypes
import time
from concurrent.futures import Future, ThreadPoolExecutor

_LONGEST_SLEEP_S = 0.001
_runtime = ctypes.PyDLL("libascendcl.so")
now_ns, wait_until = _runtime.opmeter_fake_cann_now, _runtime.opmeter_fake_cann_wait
now_ns.restype = ctypes.c_int64
wait_until.argtypes = [ctypes.c_int64]
begin_run, end_run = _runtime.opmeter_fake_cann_begin_run, _runtime.opmeter_fake_cann_end_run
_source_ns = _runtime.opmeter_fake_cann_source_ns
_source_ns.restype = ctypes.c_int64
_SOURCES = 16
_sleep = time.sleep


def device_ns():
    """Return the time of the device by the source of durations, since the run began."""
    return [_source_ns(source) for source in range(_SOURCES)]


def _now():
    return now_ns() / 1e9


def _slept(seconds):
    _sleep(min(seconds, _LONGEST_SLEEP_S))  # of a thread that looks for something again and again
    wait_until(now_ns() + round(seconds * 1e9))


def install():
    """Let Python's clocks show virtual time from now on."""
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _now)
        setattr(time, f"{name}_ns", now_ns)
    time.sleep = _slept
    submit, result, done = ThreadPoolExecutor.submit, Future.result, Future.done
    finishing = Future.set_result

    def submitted(self, function, /, *given, **named):
        asked_ns = now_ns()

        def run():
            wait_until(asked_ns)
            return function(*given, **named)

        return submit(self, run)

    def finish(self, value):
        self.opmeter_ns = now_ns()
        finishing(self, value)

    def resulted(self, timeout=None):
        value = result(self, timeout)
        wait_until(_made_ns(self))
        return value

    ThreadPoolExecutor.submit, Future.set_result, Future.result = submitted, finish, resulted
    Future.done = lambda self: done(self) and _made_ns(self) <= now_ns()


def _made_ns(future):
    return getattr(future, "opmeter_ns", 0)
