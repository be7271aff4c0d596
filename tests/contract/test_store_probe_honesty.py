"""Stores with broken create-only writes, which the probe must detect."""

import re
import threading
import time

import pytest

from collector.codec.errors import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from collector.store.in_memory import MemoryStore
from collector.store.probe import probe_store

pytestmark = pytest.mark.fast


class IgnoresTheCondition(MemoryStore):
    """Like rclone serve s3, s3rver and RGW's dbstore."""

    def __init__(self):
        super().__init__()
        self.keys = set()

    def create(self, key, data):
        self.keys.add(key)
        self.put(key, data)


class RefusesOnlyTheSecond(MemoryStore):
    """Like Swift: checks first, then writes; concurrent writers win too."""

    def create(self, key, data):
        if any(info.key == key for info in self.list(key)):
            raise AlreadyExists(key)
        time.sleep(0.02)
        self.put(key, data)


class RefusesButWrites(MemoryStore):
    """Refuses all but the first, and stores what the last one sent."""

    def create(self, key, data):
        try:
            super().create(key, data)
        except AlreadyExists:
            self.put(key, data)
            raise


class KeepsALosersBytes(MemoryStore):
    """One racer wins, and the bytes of another are stored; a single writer works."""

    def __init__(self):
        super().__init__()
        self.first, self.reported = threading.Lock(), set()

    def create(self, key, data):
        with self.first:
            if key in self.reported:
                raise AlreadyExists(key)
            try:
                super().create(key, data)
            except AlreadyExists:  # the second to arrive
                self.reported.add(key)
                self.put(key, data)
                raise


class LosesEverything(MemoryStore):
    """Confirms once, and stores nothing."""

    def __init__(self):
        super().__init__()
        self.lock, self.seen = threading.Lock(), set()

    def create(self, key, data):
        with self.lock:
            if key in self.seen:
                raise AlreadyExists(key)
            self.seen.add(key)


class Keeps(MemoryStore):
    """Refuses deletions."""

    def delete(self, key):
        raise StoreRefused(f"{key}: no")


class Away(MemoryStore):
    def create(self, key, data):
        raise StoreUnavailable("away")


def test_ignored_condition_is_detected():
    store = IgnoresTheCondition()
    answer = probe_store(store, writers=6)
    assert not answer.create_only
    assert re.findall(r"\d+", answer.message) == ["6", "6"]  # all of them won
    assert len(store.keys) == 1  # one race, and no more


def test_several_winners_of_a_race_are_detected():
    store = RefusesOnlyTheSecond()
    store.create("k", b"1")
    with pytest.raises(AlreadyExists):  # a sequential request gets a correct reply
        store.create("k", b"2")
    answer = probe_store(store)
    assert not answer.create_only
    won, writers = map(int, re.findall(r"\d+", answer.message))
    assert won > 1 and writers == 16


@pytest.mark.parametrize("writers", [1, 8])
def test_stored_write_that_was_refused_is_detected(writers):
    assert not probe_store(RefusesButWrites(), writers=writers).create_only


def test_winner_with_the_bytes_of_another_writer_is_detected():
    answer = probe_store(KeepsALosersBytes())
    assert not answer.create_only
    assert re.findall(r"\d+", answer.message) == ["2", "16"]


def test_missing_object_of_the_winner_is_detected():
    answer = probe_store(LosesEverything(), least=1, most=1)
    assert not answer.create_only
    assert re.search(r"\.probe/\w+", answer.message)  # the lost object


def test_probe_leaves_no_objects():
    for store in (MemoryStore(), IgnoresTheCondition(), RefusesOnlyTheSecond()):
        store.put("mine", b"1")
        probe_store(store, least=1, most=1)
        assert [info.key for info in store.list("")] == ["mine"]


def test_honest_store_without_deletions_passes(caplog):
    answer = probe_store(Keeps(), least=1, most=1)
    assert answer.create_only
    assert ".probe/" in caplog.text  # the remaining object


def test_unavailable_store_gets_no_verdict():
    with pytest.raises(StoreUnavailable):
        probe_store(Away())


def test_unsupported_condition_is_a_result_and_not_an_error():
    class KnowsNoCondition(MemoryStore):
        def create(self, key, data):
            raise StoreError(f"{key}: 501 NotImplemented")

    answer = probe_store(KnowsNoCondition(), least=1, most=1)
    assert not answer.create_only
    assert "501" in answer.message
