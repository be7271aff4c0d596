"""Stores that lie about create-only writes, and a probe that must notice."""

import re
import threading
import time

import pytest

from collector.codec.errors import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from collector.store.in_memory import MemoryStore
from collector.store.probe import probe_store

pytestmark = pytest.mark.fast


class IgnoresTheCondition(MemoryStore):
    """As rclone serve s3, s3rver and RGW's dbstore."""

    def __init__(self):
        super().__init__()
        self.keys = set()

    def create(self, key, data):
        self.keys.add(key)
        self.put(key, data)


class RefusesOnlyTheSecond(MemoryStore):
    """As Swift: looks first, then writes; whoever looks at the same time wins too."""

    def create(self, key, data):
        if any(info.key == key for info in self.list(key)):
            raise AlreadyExists(key)
        time.sleep(0.02)
        self.put(key, data)


class RefusesButWrites(MemoryStore):
    """Says no to all but the first, and keeps what the last one sent."""

    def create(self, key, data):
        try:
            super().create(key, data)
        except AlreadyExists:
            self.put(key, data)
            raise


class KeepsALosersBytes(MemoryStore):
    """One racer is told it won, and another's bytes are there; alone it behaves."""

    def __init__(self):
        super().__init__()
        self.first, self.told = threading.Lock(), set()

    def create(self, key, data):
        with self.first:
            if key in self.told:
                raise AlreadyExists(key)
            try:
                super().create(key, data)
            except AlreadyExists:  # the second to come
                self.told.add(key)
                self.put(key, data)
                raise


class LosesEverything(MemoryStore):
    """Says yes once, and holds nothing."""

    def __init__(self):
        super().__init__()
        self.lock, self.seen = threading.Lock(), set()

    def create(self, key, data):
        with self.lock:
            if key in self.seen:
                raise AlreadyExists(key)
            self.seen.add(key)


class Keeps(MemoryStore):
    """Lets nobody delete."""

    def delete(self, key):
        raise StoreRefused(f"{key}: no")


class Away(MemoryStore):
    def create(self, key, data):
        raise StoreUnavailable("away")


def test_an_ignored_condition_is_noticed():
    store = IgnoresTheCondition()
    answer = probe_store(store, writers=6)
    assert not answer.create_only
    assert re.findall(r"\d+", answer.message) == ["6", "6"]  # all of them won
    assert len(store.keys) == 1  # one race, and no further


def test_racers_that_win_together_are_noticed():
    store = RefusesOnlyTheSecond()
    store.create("k", b"1")
    with pytest.raises(AlreadyExists):  # a polite question gets a polite answer
        store.create("k", b"2")
    answer = probe_store(store)
    assert not answer.create_only
    won, writers = map(int, re.findall(r"\d+", answer.message))
    assert won > 1 and writers == 16


@pytest.mark.parametrize("writers", [1, 8])
def test_a_refused_write_that_is_kept_is_noticed(writers):
    assert not probe_store(RefusesButWrites(), writers=writers).create_only


def test_a_winner_whose_bytes_are_not_there_is_noticed():
    answer = probe_store(KeepsALosersBytes())
    assert not answer.create_only
    assert re.findall(r"\d+", answer.message) == ["2", "16"]


def test_a_winner_that_is_not_there_is_noticed():
    answer = probe_store(LosesEverything(), least=1, most=1)
    assert not answer.create_only
    assert re.search(r"\.probe/\w+", answer.message)  # what is lost


def test_the_probe_leaves_nothing():
    for store in (MemoryStore(), IgnoresTheCondition(), RefusesOnlyTheSecond()):
        store.put("mine", b"1")
        probe_store(store, least=1, most=1)
        assert [info.key for info in store.list("")] == ["mine"]


def test_an_honest_store_that_lets_nobody_delete_passes(caplog):
    answer = probe_store(Keeps(), least=1, most=1)
    assert answer.create_only
    assert ".probe/" in caplog.text  # what stays


def test_a_store_that_is_away_is_not_called_dishonest():
    with pytest.raises(StoreUnavailable):
        probe_store(Away())


def test_the_probe_is_an_error_only_where_it_cannot_ask():
    class KnowsNoCondition(MemoryStore):
        def create(self, key, data):
            raise StoreError(f"{key}: 501 NotImplemented")

    answer = probe_store(KnowsNoCondition(), least=1, most=1)
    assert not answer.create_only
    assert "501" in answer.message
