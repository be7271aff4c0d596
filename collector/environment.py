"""The environment of a process: clock, random numbers and threads.

All of them come through here, so that a test or a simulation can replace them.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from typing import Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")
_POLL_S = 0.1


class Running(Protocol):
    """A started thread."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Environment:
    """The environment of a process of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return event.wait(seconds)

    def utc_now(self) -> datetime:
        return datetime.now(UTC)

    def token(self, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def map_concurrently(self, call: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
        listed = list(items)
        if len(listed) < 2:  # the usual case: a thread costs more than many calls
            return [call(item) for item in listed]
        with ThreadPoolExecutor(min(threads, len(listed))) as pool:
            return list(pool.map(call, listed))

    def call_until(self, call: Callable[[], T], is_over: Callable[[], bool]) -> T:
        found: futures.Future[T] = futures.Future()
        here = copy_context()

        def run() -> None:
            try:
                found.set_result(here.run(call))
            except BaseException as error:
                found.set_exception(error)

        self.begin(run, "call")
        while not futures.wait([found], _POLL_S).done:
            if is_over():
                raise TimeoutError
        return found.result()

    def begin(self, call: Callable[[], None], name: str) -> Running:
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread


_REAL = Environment()
_HERE: ContextVar[Environment] = ContextVar("environment", default=_REAL)


@contextmanager
def use_environment(environment: Environment) -> Iterator[None]:
    """Run all work of this thread in an environment."""
    token = _HERE.set(environment)
    try:
        yield
    finally:
        _HERE.reset(token)


def monotonic() -> float:
    """Return the seconds of a clock that never goes back."""
    return _HERE.get().monotonic()


def sleep(seconds: float) -> None:
    _HERE.get().sleep(seconds)


def wait(event: threading.Event, seconds: float | None = None) -> bool:
    """Wait for an event, at most `seconds`; return whether it is set."""
    return _HERE.get().wait(event, seconds)


def utc_now() -> datetime:
    """Return the current time, for display only: no decision depends on it."""
    return _HERE.get().utc_now()


def token(digits: int) -> str:
    """Return random hex digits that no other process has drawn."""
    return _HERE.get().token(digits)


def uniform(low: float, high: float) -> float:
    """Return a random number between two."""
    return _HERE.get().uniform(low, high)


def map_concurrently(call: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Return the results of `call` for every item, in their order, computed by `threads` threads.
    Raises the first error."""
    return _HERE.get().map_concurrently(call, items, threads)


def call_until(call: Callable[[], T], is_over: Callable[[], bool]) -> T:
    """Return the result of `call`. Raises TimeoutError if `is_over` becomes true while it runs: its
    thread then goes on alone, and ends with the process."""
    return _HERE.get().call_until(call, is_over)


def begin(call: Callable[[], None], name: str) -> Running:
    """Run `call` concurrently with the caller, in a thread that does not outlive the process."""
    return _HERE.get().begin(call, name)
