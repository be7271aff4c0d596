"""Drills: an unavailable, slow or overloaded store. Each ends with a complete, verified
database."""

import time

import pytest

from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults
from tests.servers.faults import Answer, Delay, FaultProxy, Rule

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


OUTAGE_S = 30.0


_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


def outage(drill: Drill, faults: Faults, seconds: float) -> None:
    """Run the campaign with an outage of the store in its middle."""
    drill.launch()
    drill.wait_committed(2)
    with faults.store_down():
        time.sleep(seconds)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_outage_of_the_store_is_waited_for(drill: Drill, faults: Faults):
    outage(drill, faults, OUTAGE_S)


def test_two_minutes_without_a_store_are_waited_for(drill: Drill, faults: Faults):
    outage(drill, faults, 120.0)


def test_slow_and_overloaded_store_is_tolerated(drill: Drill, store_proxy: FaultProxy):
    drill.speak_to_store_at(store_proxy.url)
    store_proxy.add(Rule(Delay(1.5), every=3))
    drill.launch()
    drill.wait_committed(2)
    store_proxy.clear()
    store_proxy.add(Rule(Answer(503, _SLOW_DOWN)))
    time.sleep(OUTAGE_S)
    refused = sum(request.fault is not None for request in store_proxy.requests)
    store_proxy.clear()
    assert refused > 3
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
