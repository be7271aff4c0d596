"""A store in this process's memory: for tests, and for a dry run that must not write anything."""

import threading
from collections.abc import Iterator

from collector.codec.errors import AlreadyExists, NotFound
from collector.store.base import Info, check_key, check_prefix, parent_conflict


class MemoryStore:
    """A dictionary behind a lock, with the behaviour of the other stores."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return "memory:"

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            return self._held(key)

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            self._hold(key, data)

    def create(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._lock:
            if key in self._objects:
                raise AlreadyExists(f"memory:{key}: object already exists")
            self._hold(key, data)

    def list(self, prefix: str) -> Iterator[Info]:
        check_prefix(prefix)
        with self._lock:
            found = [
                Info(key, len(data))
                for key, data in self._objects.items()
                if key.startswith(prefix)
            ]
        return iter(sorted(found, key=lambda info: info.key))

    def copy(self, source: str, target: str) -> None:
        check_key(source)
        check_key(target)
        with self._lock:
            self._hold(target, self._held(source))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def _held(self, key: str) -> bytes:
        if key not in self._objects:
            raise NotFound(f"memory:{key}: no such object")
        return self._objects[key]

    def _hold(self, key: str, data: bytes) -> None:
        parts = key.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        below = f"{key}/"
        if any(parent in self._objects for parent in above) or any(
            other.startswith(below) for other in self._objects
        ):
            raise parent_conflict(f"memory:{key}")
        self._objects[key] = bytes(data)
