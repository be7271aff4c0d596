"""A store for one writer: create-only writes where the store itself knows none.

Some S3 servers answer `If-None-Match: *` with 501, others ignore it. Where the user vouches for
being the only writer, looking before writing says the same. Two writers at once would both win:
nothing here can notice that.
"""

from collections.abc import Iterator

from collector.errors import AlreadyExists, NotFound
from collector.store.base import Info, Store


class SingleWriterStore:
    """Wraps a store; a `create` is a look and a `put`, everything else is the store's own."""

    def __init__(self, store: Store):
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        try:
            self._store.get(key)
        except NotFound:
            self._store.put(key, data)
        else:
            raise AlreadyExists(f"{self.url}: {key} holds an object already")

    def list(self, prefix: str) -> Iterator[Info]:
        return self._store.list(prefix)

    def copy(self, source: str, target: str) -> None:
        self._store.copy(source, target)

    def delete(self, key: str) -> None:
        self._store.delete(key)
