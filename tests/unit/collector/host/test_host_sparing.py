"""The rate of condition queries."""

import pytest

from collector.host.rate_limit import RateLimited
from collector.model.measurement import Condition

pytestmark = pytest.mark.fast


class Source:
    """Takes half a second per query, on its own clock."""

    def __init__(self):
        self.now_s = 100.0
        self.requests = 0

    def request(self):
        self.requests += 1
        self.now_s += 0.5
        return Condition(clock_mhz=float(self.requests))

    def clock(self):
        return self.now_s


def test_condition_queries_take_at_most_a_hundredth_of_the_time():
    source = Source()
    sparing = RateLimited(source.request, source.clock)
    assert sparing.read() == Condition(clock_mhz=1.0)
    reported, began_s = [], source.now_s
    for _ in range(1000):
        source.now_s += 1.0  # a case
        reported.append(sparing.read())
    assert 1 + sum(reading is not None for reading in reported) == source.requests == 21
    assert 0.5 * (source.requests - 1) <= 0.01 * (source.now_s - began_s)
