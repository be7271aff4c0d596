"""Waiting for a store that is away."""

import pytest

from collector.errors import AlreadyExists, NotFound, StoreUnavailable
from collector.store.memory import MemoryStore
from collector.store.patient import PatientStore

pytestmark = pytest.mark.fast


class AwayFor(MemoryStore):
    """Does not answer the first `n` calls."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def get(self, key):
        if self.left > 0:
            self.left -= 1
            raise StoreUnavailable("away")
        return super().get(key)


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def time(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def patient(store, patience_s):
    clock = Clock()
    return PatientStore(store, patience_s, clock=clock.time, sleep=clock.sleep), clock


def test_a_store_that_comes_back_is_waited_for():
    inner = AwayFor(5)
    inner.put("a", b"1")
    store, clock = patient(inner, 600)
    assert store.get("a") == b"1"
    assert 0 < clock.now_s < 60


def test_patience_ends():
    store, clock = patient(AwayFor(10**6), 600)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    assert 500 < clock.now_s <= 600


def test_an_answer_is_an_answer():
    store, clock = patient(MemoryStore(), 600)
    with pytest.raises(NotFound):
        store.get("a")
    store.create("a", b"1")
    with pytest.raises(AlreadyExists):
        store.create("a", b"2")
    assert clock.now_s == 0
