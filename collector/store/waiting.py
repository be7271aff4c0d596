"""Wrappers of a store: one that waits while it is unavailable, one for a single writer."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import TypeVar

from collector import environment
from collector.codec import errors
from collector.store.base import Info, Store

T = TypeVar("T")


class StoreWrapper:
    """A wrapper of a store, whose calls `_call` makes."""

    def __init__(self, store: Store):
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str) -> bytes:
        return self._call(lambda: self._store.get(key))

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: self._store.put(key, data))

    def create(self, key: str, data: bytes) -> None:
        self._call(lambda: self._store.create(key, data))

    def list(self, prefix: str) -> Iterator[Info]:
        return self._call(lambda: self._store.list(prefix))

    def copy(self, source: str, target: str) -> None:
        self._call(lambda: self._store.copy(source, target))

    def delete(self, key: str) -> None:
        self._call(lambda: self._store.delete(key))

    def _call(self, call: Callable[[], T]) -> T:
        return call()


# A store that waits until another store is available again.
#
# A measurement costs device time; a store that is unavailable for a minute must not cost it twice.
# Every call is retried, with growing pauses, until the patience is spent or `stop` is set. A
# stopped process may still have results to store: it gets a limited grace period.

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_REPLY_S = 10.0  # that a stopped process waits for a reply


class PatientStore(StoreWrapper):
    """A wrapper of a store. A call that fails for `patience_s` raises the last error; so does a
    call `grace_s` after it found `stop` set. Before the store has answered at all, calls wait for
    at most `first_s`: its address may be wrong. A server may also not answer a call at all, for
    minutes: a stopped process waits a few seconds for its reply, and makes no further call.

    A refusal is final, unless `wait_for_refusals` is set: credentials that are mounted into a pod
    are rotated while it runs, a user's own credentials are not.

    After a lost reply, a retried `create` finds its own object: see `base.create_once`."""

    def __init__(
        self,
        store: Store,
        patience_s: float = 600.0,
        *,
        first_s: float = inf,
        wait_for_refusals: bool = False,
        stop: threading.Event | None = None,
        grace_s: float = 0.0,
        clock: Callable[[], float] = environment.monotonic,
        sleep: Callable[[float], object] | None = None,
    ):
        super().__init__(store)
        self._patience_s, self._first_s = patience_s, min(first_s, patience_s)
        self._has_answered = False
        self._waits_for = (
            (errors.StoreUnavailable, errors.StoreRefused)
            if wait_for_refusals
            else (errors.StoreUnavailable,)
        )
        self._stop, self._is_stoppable = stop or threading.Event(), stop is not None
        self._has_given_up = False
        self._grace_s = grace_s
        self._ends_at = inf  # set when the stop is found
        self._clock = clock
        self._sleep = sleep or self._wait

    def list(self, prefix: str) -> Iterator[Info]:
        return iter(self._call(lambda: tuple(self._store.list(prefix))))

    def _call(self, call: Callable[[], T]) -> T:
        deadline = self._clock() + (self._patience_s if self._has_answered else self._first_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                done = self._replied(call)
                self._has_answered = True
                return done
            except errors.NotFound:
                self._has_answered = True
                raise
            except self._waits_for as error:
                if self._clock() + pause_s > min(deadline, self._end()):
                    raise
                logger.warning("%s; retrying in %.1f s", error, pause_s)
                was_stopped = self._stop.is_set()
                self._sleep(pause_s * environment.uniform(0.5, 1.0))
                if self._clock() >= self._end():
                    raise
            is_news = self._stop.is_set() and not was_stopped
            pause_s = _FIRST_PAUSE_S if is_news else min(2 * pause_s, _LONGEST_PAUSE_S)

    def _replied(self, call: Callable[[], T]) -> T:
        """Return the result of a call. Raises StoreUnavailable if a reply takes too long after the
        stop."""
        if not self._is_stoppable:
            return call()
        begin_s = self._clock()
        try:
            if self._has_given_up:
                raise TimeoutError
            return environment.call_until(
                call, lambda: self._clock() > max(begin_s, self._end()) + _REPLY_S
            )
        except TimeoutError as error:
            self._has_given_up = True
            what = "no reply, and this process was requested to stop"
            raise errors.StoreUnavailable(f"{self.url}: {what}") from error

    def _end(self) -> float:
        """Return when all calls give up because of the stop: one grace period for all calls."""
        if self._ends_at == inf and self._stop.is_set():
            self._ends_at = self._clock() + self._grace_s
        return self._ends_at

    def _wait(self, seconds: float) -> None:
        """Pause until the time is over or `stop` is set."""
        if self._stop.is_set():
            environment.sleep(seconds)
        else:
            environment.wait(self._stop, seconds)


# A store for one writer: create-only writes on a store that does not support them.
#
# Some S3 servers answer `If-None-Match: *` with 501, others ignore it. If there is only one writer,
# by the user's word or by a lock, a check before the write is equivalent. Of two concurrent writers
# both would win there, and this class cannot detect it. The store's own create-only write is used
# where there is one: another writer, which has not taken this one's lock, then loses nothing.


class SingleWriterStore(StoreWrapper):
    """A wrapper of a store; `create` is a check and a write, all other calls are the store's own.

    Between the two it calls `may_write`, for a writer whose lock can be lost; if the result is
    false, `create` raises StoreError. The write is a `put` if the store refuses create-only
    ones."""

    def __init__(self, store: Store, may_write: Callable[[], bool] = lambda: True):
        super().__init__(store)
        self._may_write = may_write

    def create(self, key: str, data: bytes) -> None:
        with suppress(errors.NotFound):
            self._store.get(key)
            raise errors.AlreadyExists(f"{self.url}: {key} object already exists")
        if not self._may_write():
            raise errors.StoreError(
                f"{self.url}: {key} was not written: the lock of its writer is lost, "
                "and another process may write it"
            )
        try:
            self._store.create(key, data)
        except (errors.AlreadyExists, errors.StoreRefused, errors.StoreUnavailable):
            raise
        except errors.StoreError:  # such as 501: the server does not know the header
            self._store.put(key, data)
