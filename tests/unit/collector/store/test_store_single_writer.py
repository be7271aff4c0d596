"""What a single writer's word is worth on a store without create-only writes."""

import pytest

from collector.codec.errors import AlreadyExists, NotFound, StoreError, StoreUnavailable
from collector.store.base import Store, create_once
from collector.store.in_memory import MemoryStore
from collector.store.waiting import SingleWriterStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


class Refusing(MemoryStore):
    """Answers a conditional write as a server does that does not know the header."""

    def create(self, key: str, data: bytes) -> None:
        raise StoreError(f"{key}: 501 NotImplemented: If-None-Match")


class Ignoring(MemoryStore):
    """Takes a conditional write for any other."""

    def create(self, key: str, data: bytes) -> None:
        self.put(key, data)


@pytest.fixture(params=[Refusing, Ignoring])
def inner(request: pytest.FixtureRequest) -> MemoryStore:
    store: MemoryStore = request.param()
    return store


def test_what_is_there_is_kept(inner: MemoryStore) -> None:
    store = SingleWriterStore(inner)
    store.create("a/b", b"first")
    with pytest.raises(AlreadyExists, match=naming(inner.url, "a/b")):
        store.create("a/b", b"second")
    assert inner.get("a/b") == b"first"
    create_once(store, "a/b", b"first")
    with pytest.raises(AlreadyExists):
        create_once(store, "a/b", b"second")


def test_an_empty_object_is_there_too(inner: MemoryStore) -> None:
    inner.put("a", b"")
    with pytest.raises(AlreadyExists):
        SingleWriterStore(inner).create("a", b"1")


def test_everything_else_is_the_stores_own(inner: MemoryStore) -> None:
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


def test_a_store_that_does_not_answer_is_not_written_to() -> None:
    class Away(MemoryStore):
        def get(self, key: str) -> bytes:
            raise StoreUnavailable("away")

    inner = Away()
    with pytest.raises(StoreUnavailable):
        SingleWriterStore(inner).create("a", b"1")
    assert list(inner.list("")) == []


def test_whoever_has_lost_its_lock_writes_nothing_new(inner: MemoryStore) -> None:
    held = [True]
    store = SingleWriterStore(inner, lambda: held[0])
    store.create("a", b"1")
    held[0] = False
    with pytest.raises(AlreadyExists):
        store.create("a", b"2")
    with pytest.raises(StoreError, match=naming(inner.url, "b", "lock")):
        store.create("b", b"1")
    assert [info.key for info in inner.list("")] == ["a"]
    store.put("c", b"1")  # what may be written twice needs no lock
