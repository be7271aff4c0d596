"""Drills of many kills, and of a permanently lost node: pytest tests/cluster/long"""

import random
import time
from contextlib import suppress

import pytest

from jobs.kube.leader_election import LEASE
from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults
from tests.cluster.gangs import as_gang

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

KILLS = 20
SEED = 20260601


def test_controller_survives_twenty_random_kills(drill: Drill):
    """Each lives for some seconds. Its Lease is deleted with it: that the next one waits for the
    Lease to expire is another drill's subject."""
    chance = random.Random(SEED)
    drill.order(delay_s=5)  # so that the campaign outlives the kills
    drill.apply()
    kills = 0
    while kills < KILLS and not drill.is_merged():
        controller = drill.controller()
        life_s = chance.uniform(1.0, 6.0)
        time.sleep(life_s)
        controller.kill()
        kills += 1
        drill.namespace("delete", "lease", LEASE, "--ignore-not-found")
        shards = f"{drill.committed()} shards" if drill.has_plan() else "no plan"
        print(f"kill {kills} after {life_s:.1f} s: {shards}, {len(drill.waves())} waves")
    assert kills == KILLS, "the campaign finished before the last kill"
    drill.controller()
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD


def test_gang_that_permanently_lost_a_node_waits_for_another_and_is_recreated(
    drill: Drill, faults: Faults
):
    """Of two nodes: one has not enough resources for it, and an Event is announced."""
    as_gang(drill)
    drill.launch()
    drill.wait("both pods run", lambda: len(drill.workers()) == 2)
    with faults.kubelet_stopped("node2"):
        for lost in drill.workers("node2"):
            with suppress(RuntimeError):
                faults.kill_container(drill.namespace, lost["metadata"]["name"])
        drill.wait("an Event reports it", lambda: {"NodeLost", "GangWaits"} <= drill.reasons())
        assert not drill.namespace.find("jobs", "opmeter.io/kind=gang")
    drill.finish()
    assert set(drill.outcomes().values()) == {"ok"}
    assert {wave["pods"] for wave in drill.waves()} == {2}
