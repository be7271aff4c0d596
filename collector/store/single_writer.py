"""A store for one writer: create-only writes where the store itself knows none.

Some S3 servers answer `If-None-Match: *` with 501, others ignore it. Where one writer is all there
is, by the user's word or by a lock, looking before writing says the same. Two writers at once
would both win: nothing here can notice that.
"""

from collections.abc import Callable, Iterator

from collector.errors import AlreadyExists, NotFound, StoreError
from collector.store.base import Info, Store


def _always() -> bool:
    return True


class SingleWriterStore:
    """Wraps a store; a `create` is a look and a `put`, everything else is the store's own.

    Between the two `may_write` is asked, for whoever writes by a lock that can be lost; where it
    says no, `create` raises StoreError.
    """

    def __init__(self, store: Store, may_write: Callable[[], bool] = _always):
        self._store, self._may_write = store, may_write

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        if self._holds(key):
            raise AlreadyExists(f"{self.url}: {key} object already exists")
        if not self._may_write():
            raise StoreError(
                f"{self.url}: {key} was not written: the lock of its writer is lost, "
                "and another process may write it"
            )
        self._store.put(key, data)

    def list(self, prefix: str) -> Iterator[Info]:
        return self._store.list(prefix)

    def copy(self, source: str, target: str) -> None:
        self._store.copy(source, target)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def _holds(self, key: str) -> bool:
        try:
            self._store.get(key)
        except NotFound:
            return False
        return True
