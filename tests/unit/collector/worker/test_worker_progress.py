"""The snapshot of an attempt's progress: always the newest, and nothing waits for its upload."""

import json
import threading
import time
from dataclasses import replace

import pytest

from collector.codec.errors import StoreUnavailable
from collector.model import keys
from collector.store.in_memory import MemoryStore
from collector.worker.attempt import Progress, ProgressObject, read_progress
from tests.waiting import wait_for

pytestmark = pytest.mark.fast

KEY = keys.progress("c", "s1", "a1")


class Slow(MemoryStore):
    """A slow store: a write lasts until `go` is set."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.begun = threading.Event()
        self.written = []

    def put(self, key, data):
        self.begun.set()
        self.go.wait()
        self.written.append(json.loads(data)["done"])
        super().put(key, data)


class Away(MemoryStore):
    def __init__(self):
        super().__init__()
        self.tried = 0

    def put(self, key, data):
        self.tried += 1
        raise StoreUnavailable("away")


def test_progress_object_has_the_state_of_the_attempt():
    store = MemoryStore()
    with ProgressObject(store, "c", "s1", "a1", every_s=0.001) as progress:
        progress.count_measured(2, 5)
        wait_for(lambda: _stored(store) == Progress(2, 5, "", before=2))
        progress.measured(1, "Add 2,2")
        wait_for(lambda: _stored(store) == Progress(3, 5, "Add 2,2", before=2))
    took_s = read_progress(store, KEY).took_s
    assert 0 < took_s < 60


def test_lost_session_does_not_reduce_the_progress():
    store = MemoryStore()
    with ProgressObject(store, "c", "s1", "a1", every_s=0.001) as progress:
        progress.count_measured(2, 9)
        progress.measured(5, "Add 2,2")
        progress.count_measured(2, 9)
        progress.measured(1, "Add 3,3")
        wait_for(lambda: _stored(store) == Progress(7, 9, "Add 3,3", before=2))
        progress.measured(6, "Add 4,4")
        wait_for(lambda: _stored(store) == Progress(8, 9, "Add 4,4", before=2))


def test_a_slow_store_gets_only_the_newest_value():
    store = Slow()
    with ProgressObject(store, "c", "s1", "a1", every_s=0.001) as progress:
        progress.count_measured(0, 100)
        store.begun.wait()
        for done in range(100):  # returns at once, although nothing has been written yet
            progress.measured(done, "Add")
        assert store.written == []
        store.go.set()
        wait_for(lambda: store.written == [0, 99])


def test_progress_is_written_at_intervals():
    store = Slow()
    store.go.set()
    with ProgressObject(store, "c", "s1", "a1", every_s=60.0) as progress:
        progress.count_measured(1, 9)
        wait_for(lambda: store.written == [1])
        progress.count_measured(2, 9)
        time.sleep(0.05)
    assert store.written == [1]


def test_unavailable_store_is_retried_with_the_next_value():
    store = Away()
    with ProgressObject(store, "c", "s1", "a1", every_s=0.001) as progress:
        for tried in (1, 2):
            progress.count_measured(tried, 9)
            wait_for(lambda tried=tried: store.tried >= tried)


def _stored(store):
    """Return the progress that is stored, without its time."""
    found = read_progress(store, KEY)
    return found and replace(found, took_s=0.0)


@pytest.mark.parametrize(
    "odd",
    [
        *(b"", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000),
        *(b'{"done": null, "cases": 3, "case": ""}', b'{"done": 1}'),
    ],
)
def test_malformed_progress_is_ignored(odd):
    store = MemoryStore()
    assert read_progress(store, KEY) is None
    store.put(KEY, odd)
    assert read_progress(store, KEY) is None
    store.put(KEY, b'{"done": 1, "cases": 3, "case": "Add"}')
    assert read_progress(store, KEY) == Progress(1, 3, "Add")
