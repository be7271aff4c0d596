"""Drills: what happens to the object store. Each ends with a complete, verified database."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.cluster.drill import GOOD, SECRET, Drill
from tests.cluster.faults import Faults
from tests.servers.faults import Answer, Delay, FaultProxy, Rule

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

OUTAGE_S = 30.0
_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


def outage(drill: Drill, faults: Faults, seconds: float) -> None:
    """The campaign, with a store that is away for so long in the midst of it."""
    drill.launch()
    drill.wait_committed(2)
    with faults.store_down():
        time.sleep(seconds)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_an_outage_of_the_store_is_waited_for(drill: Drill, faults: Faults):
    outage(drill, faults, OUTAGE_S)


def test_a_store_that_is_slow_and_then_overloaded_is_borne_with(
    drill: Drill, store_proxy: FaultProxy
):
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


def test_credentials_may_be_rotated_while_pods_run(drill: Drill):
    drill.launch()
    drill.wait_committed(2)
    with rotated(drill):
        drill.finish()
        assert set(drill.outcomes().values()) <= GOOD


@contextmanager
def rotated(drill: Drill) -> Iterator[None]:
    """The store takes another key from now on, which the Secret and this machine's file hold."""
    old = drill.cluster.own.store
    new = replace(old, access_key="rotatedkey", secret_key="rotatedsecret1")
    old.stop()
    new.start()
    try:
        drill.namespace.make_secret(SECRET, drill.credentials(new))
        drill.write_credentials(new)
        yield
    finally:
        new.stop()
        old.start()
