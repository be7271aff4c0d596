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


class CountingStore(WrappedStore):
    """Records every call, and kills its own process before or after call number `kill_at`."""

    def __init__(self, store: Store, *, kill_at: int = 0, after: bool = False):
        super().__init__(store)
        self.calls: list[tuple[str, str]] = []
        self._kill_at = kill_at
        self._after = after
        self._lock = threading.Lock()

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.calls.append((verb, key))
            is_last = len(self.calls) == self._kill_at
        if is_last and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return call()
        finally:
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)


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
