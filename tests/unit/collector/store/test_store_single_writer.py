"""The guarantees of a single writer on a store without create-only writes."""

import pytest

from collector.codec.errors import AlreadyExists, NotFound, StoreError, StoreUnavailable
from collector.store.base import Store, create_once
from collector.store.in_memory import MemoryStore
from collector.store.waiting import SingleWriterStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


class Refusing(MemoryStore):
    """Answers a conditional write like a server that does not know the header."""

    def create(self, key: str, data: bytes) -> None:
        raise StoreError(f"{key}: 501 NotImplemented: If-None-Match")


class Ignoring(MemoryStore):
    """Handles a conditional write like any other."""

    def create(self, key: str, data: bytes) -> None:
        self.put(key, data)


@pytest.fixture(params=[Refusing, Ignoring])
def inner(request: pytest.FixtureRequest) -> MemoryStore:
    store: MemoryStore = request.param()
    return store


def test_existing_object_is_kept(inner: MemoryStore) -> None:
    store = SingleWriterStore(inner)
    store.create("a/b", b"first")
    with pytest.raises(AlreadyExists, match=naming(inner.url, "a/b")):
        store.create("a/b", b"second")
    assert inner.get("a/b") == b"first"
    create_once(store, "a/b", b"first")
    with pytest.raises(AlreadyExists):
        create_once(store, "a/b", b"second")


def test_empty_object_exists_too(inner: MemoryStore) -> None:
    inner.put("a", b"")
    with pytest.raises(AlreadyExists):
        SingleWriterStore(inner).create("a", b"1")


def test_other_operations_are_passed_to_the_store(inner: MemoryStore) -> None:
    store: Store = SingleWriterStore(inner)
    store.put("a", b"1")
    store.put("a", b"2")
    store.copy("a", "b")
    assert [info.key for info in store.list("")] == ["a", "b"]
    store.delete("a")
    with pytest.raises(NotFound):
        store.get("a")
    assert store.get("b") == b"2"
    assert store.url == inner.url


def test_create_only_writes_of_the_store_are_used() -> None:
    """A writer without the lock, such as a merge of another namespace, writes after the check."""
    inner = MemoryStore()

    def other_writes() -> bool:
        inner.create("a", b"theirs")
        return True

    with pytest.raises(AlreadyExists):
        SingleWriterStore(inner, other_writes).create("a", b"ours")
    assert inner.get("a") == b"theirs"


def test_unavailable_store_is_not_written() -> None:
    class Away(MemoryStore):
        def get(self, key: str) -> bytes:
            raise StoreUnavailable("away")

    inner = Away()
    with pytest.raises(StoreUnavailable):
        SingleWriterStore(inner).create("a", b"1")
    assert list(inner.list("")) == []


def test_writer_without_its_lock_creates_nothing(inner: MemoryStore) -> None:
    held = [True]
    store = SingleWriterStore(inner, lambda: held[0])
    store.create("a", b"1")
    held[0] = False
    with pytest.raises(AlreadyExists):
        store.create("a", b"2")
    with pytest.raises(StoreError, match=naming(inner.url, "b", "lock")):
        store.create("b", b"1")
    assert [info.key for info in inner.list("")] == ["a"]
    store.put("c", b"1")  # repeatable writes need no lock
