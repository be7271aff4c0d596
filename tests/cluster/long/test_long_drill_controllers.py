"""Drills: faults of controllers and of their servers. Each ends with a complete, verified
database."""

import time

import pytest

from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_controller_may_be_killed_at_any_time(drill: Drill):
    drill.apply()
    for seconds in (0.7, 4.0, 9.0):  # while it starts, before the plan, around the first wave
        controller = drill.controller()
        time.sleep(seconds)
        controller.kill()
    for least in (1, 4):
        controller = drill.controller()
        drill.wait_committed(least)
        controller.kill()
    drill.controller()
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_two_controllers_make_one_campaign(drill: Drill):
    drill.apply()
    one, other = drill.controller(), drill.controller()
    drill.wait_committed(3)
    leader = one if drill.leader_is(one) else other
    leader.kill()
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_deleted_and_reapplied_campaign_continues(drill: Drill):
    drill.launch()
    drill.wait_committed(2)
    drill.delete()
    drill.wait("its pods are gone", lambda: not drill.namespace.pods("opmeter.io/campaign=drill"))
    before = drill.commits()
    assert 2 <= len(before) < len(drill.plan().shards)
    drill.apply()
    drill.finish()
    assert before.items() <= drill.commits().items()
    assert set(drill.outcomes().values()) <= GOOD
    assert drill.plan().number == 1


def test_campaign_survives_a_restart_of_the_api_server(drill: Drill, faults: Faults):
    drill.launch()
    drill.wait_committed(2)
    with faults.api_server_down():
        time.sleep(15)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1
