"""The environment that a process reads, and that a test can replace it."""

import threading

import pytest

from collector import environment
from collector.environment import Environment, use_environment

pytestmark = pytest.mark.fast


class Simulated(Environment):
    def monotonic(self):
        return 7.0

    def map_concurrently(self, call, items, threads):
        return [("played", call(item)) for item in items]


def test_environment_is_replaced_only_within_its_context_and_thread():
    before = environment.monotonic()
    with use_environment(Simulated()):
        assert environment.monotonic() == 7.0
        assert environment.map_concurrently(abs, [-1], 2) == [("played", 1)]
        seen = []
        environment.begin(lambda: seen.append(environment.monotonic()), "other").join()
        assert seen != [7.0], "another thread has its own environment"
    assert environment.monotonic() >= before


def test_concurrent_map_keeps_the_order_and_raises_the_first_error():
    both = threading.Barrier(2, timeout=60)

    def meet(number):
        both.wait()
        if number > 1:
            raise ValueError(number)
        return -number

    assert environment.map_concurrently(meet, [0, 1], 2) == [0, -1]
    with pytest.raises(ValueError, match="2"):
        environment.map_concurrently(meet, [2, 3], 2)


def test_token_has_the_requested_length_and_is_unique():
    drawn = {environment.token(digits) for digits in (6, 7, 12, 32) for _ in range(50)}
    assert len(drawn) == 200 and {len(token) for token in drawn} == {6, 7, 12, 32}


def test_wait_ends_when_the_event_is_set():
    event = threading.Event()
    assert not environment.wait(event, 0.0)
    event.set()
    assert environment.wait(event)
