"""Stores with faults during a merge: count, kill, lose replies, interleave."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from collector.codec.errors import AlreadyExists
from collector.model import keys
from collector.store.base import Info, Store

T = TypeVar("T")


class WrappedStore:
    """Forwards every call, through `_call`, which a subclass overrides."""

    def __init__(self, store: Store):
        self.store = store

    @property
    def url(self) -> str:
        return self.store.url

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.store.get(key))

    def put(self, key: str, data: bytes) -> None:
        self._call("put", key, lambda: self.store.put(key, data))

    def create(self, key: str, data: bytes) -> None:
        self._call("create", key, lambda: self.store.create(key, data))

    def list(self, prefix: str) -> Iterator[Info]:
        return iter(self._call("list", prefix, lambda: tuple(self.store.list(prefix))))

    def copy(self, source: str, target: str) -> None:
        self._call("copy", target, lambda: self.store.copy(source, target))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.store.delete(key))

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        raise NotImplementedError


class Killed(BaseException):
    """Ends a command in the process of the tests: no handler of the product catches it."""


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_command() -> None:
    raise Killed


class CountingStore(WrappedStore):
    """Records every call, and kills before or after call number `kill_at`: its own process, or a
    command in it, which cannot make a further call."""

    def __init__(
        self,
        store: Store,
        *,
        kill_at: int = 0,
        after: bool = False,
        kill: Callable[[], None] = kill_process,
    ):
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self._last = kill_at if after else kill_at - 1  # the last call that is made
        self._kill_at = kill_at
        self._kill = kill
        self._lock = threading.Lock()

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.calls.append((verb, key))
            number = len(self.calls)
        if self._kill_at and number > self._last:
            self._kill()
        try:
            return call()
        finally:
            if number == self._kill_at:
                self._kill()


class LostReplyStore(WrappedStore):
    """Loses the reply to the first create of a commit; the client tries again, and gets the error
    that the key exists."""

    def __init__(self, store: Store):
        super().__init__(store)
        self.lost = 0

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        answer = call()
        if verb == "create" and key.startswith(keys.COMMITS) and not self.lost:
            self.lost += 1
            raise AlreadyExists(f"{key} is taken")
        return answer


class MeetingStore(WrappedStore):
    """Delays the first commit of each thread until all have reached theirs."""

    def __init__(self, store: Store, parties: int):
        super().__init__(store)
        self._barrier = threading.Barrier(parties, timeout=60)
        self._met = threading.local()

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        if verb == "create" and key.startswith(keys.COMMITS) and not hasattr(self._met, "once"):
            self._met.once = True
            self._barrier.wait()
        return call()
