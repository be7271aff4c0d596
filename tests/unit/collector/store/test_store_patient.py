"""Waiting for an unavailable store."""

import threading
import time

import pytest

from collector.codec.errors import AlreadyExists, NotFound, StoreRefused, StoreUnavailable
from collector.store.in_memory import MemoryStore
from collector.store.waiting import PatientStore

pytestmark = pytest.mark.fast


class AwayFor(MemoryStore):
    """Is unavailable for the first `n` calls."""

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


def patient(store, patience_s, **options):
    clock = Clock()
    return PatientStore(store, patience_s, clock=clock.time, sleep=clock.sleep, **options), clock


def test_unavailable_store_is_retried_until_it_returns():
    inner = AwayFor(5)
    inner.put("a", b"1")
    store, clock = patient(inner, 600)
    assert store.get("a") == b"1"
    assert 0 < clock.now_s < 60


def test_retries_end_after_the_limit():
    store, clock = patient(AwayFor(10**6), 600)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    assert 500 < clock.now_s <= 600


def test_store_that_never_answered_is_given_up_sooner():
    inner = AwayFor(10**6)
    store, clock = patient(inner, 600, first_s=60)
    with pytest.raises(StoreUnavailable):
        store.get("a")
    assert 40 < clock.now_s <= 60
    inner.left = 0
    with pytest.raises(NotFound):
        store.get("a")
    inner.left, clock.now_s = 10**6, 0
    with pytest.raises(StoreUnavailable):
        store.get("a")
    assert clock.now_s > 500, "it had answered"


def test_definite_store_errors_are_not_retried():
    store, clock = patient(MemoryStore(), 600)
    with pytest.raises(NotFound):
        store.get("a")
    store.create("a", b"1")
    with pytest.raises(AlreadyExists):
        store.create("a", b"2")
    assert clock.now_s == 0


class Refusing(MemoryStore):
    """Refuses the first `n` calls, like a server whose credentials are being rotated."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def get(self, key):
        if self.left > 0:
            self.left -= 1
            raise StoreRefused("no")
        return super().get(key)


def test_refusal_is_retried_only_on_request():
    inner = Refusing(2)
    inner.put("a", b"1")
    store, clock = patient(inner, 600)
    with pytest.raises(StoreRefused):
        store.get("a")
    assert clock.now_s == 0
    store, clock = patient(inner, 600, wait_for_refusals=True)
    assert store.get("a") == b"1"
    assert clock.now_s > 0


class SetAt:
    """An event that is set at a time of the clock."""

    def __init__(self, clock, at_s):
        self._clock, self._at_s = clock, at_s

    def is_set(self):
        return self._clock.now_s >= self._at_s


@pytest.mark.parametrize("reported_s", [0.0, 0.3, 100.0])
def test_stop_request_leaves_one_grace_period_for_all_calls(reported_s):
    clock = Clock()
    store = PatientStore(
        AwayFor(10**6),
        600,
        stop=SetAt(clock, reported_s),
        grace_s=20.0,
        clock=clock.time,
        sleep=clock.sleep,
    )
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.get("a")
        assert (
            reported_s + 5 < clock.now_s <= reported_s + 20 + 15
        )  # a pause may begin before the stop


def test_store_that_returns_within_the_grace_period_is_used():
    inner = AwayFor(5)
    inner.put("a", b"1")
    clock = Clock()
    options = {"stop": SetAt(clock, 0.0), "grace_s": 20.0}
    assert PatientStore(inner, 600, clock=clock.time, sleep=clock.sleep, **options).get("a") == b"1"


def test_stop_request_ends_the_retries():
    stop = threading.Event()
    store = PatientStore(AwayFor(10**6), 600, stop=stop)
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.get("a")
    assert time.monotonic() - begin < 30
    timer.join()
    inner = AwayFor(10**6)
    with pytest.raises(StoreUnavailable):  # and does not start again
        PatientStore(inner, 600, stop=stop).get("a")
    assert inner.left == 10**6 - 1


class Silent(MemoryStore):
    """Accepts calls, and answers them only on request."""

    def __init__(self):
        super().__init__()
        self.answers, self.calls = threading.Event(), 0

    def get(self, key):
        self.calls += 1
        assert self.answers.wait(60)
        return b"late"


def test_stop_request_ends_a_call_without_a_reply_and_all_later_ones():
    stop, clock, inner = threading.Event(), Clock(), Silent()

    def time_s():
        clock.now_s += 2.0
        return clock.now_s

    store = PatientStore(inner, 600, stop=stop, clock=time_s)
    stop.set()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.get("a")
    assert inner.calls == 1
    inner.answers.set()


def test_reply_soon_after_the_stop_request_is_used():
    stop, inner = threading.Event(), Silent()
    store = PatientStore(inner, 600, stop=stop)
    stop.set()
    threading.Timer(0.2, inner.answers.set).start()
    assert store.get("a") == b"late"
