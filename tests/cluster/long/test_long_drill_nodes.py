"""Drills: drained and faulty nodes. Each ends with a complete, verified database."""

import pytest

from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_drained_node_loses_nothing(drill: Drill, faults: Faults):
    drill.launch()
    drill.wait_committed(1)
    node = drill.catch_worker()["spec"]["nodeName"]
    with faults.drained(node):
        drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert "NodeQuarantined" not in drill.reasons()
    assert len(drill.waves()) == 1


def test_node_on_which_every_shard_fails_is_quarantined(drill: Drill):
    drill.text = drill.text.replace("devices: 2", "devices: 4")
    drill.text = drill.text.replace("Slice]", "Slice, ConcatD, SwiGlu]")  # enough shards
    bad = {"node_without_torch": "node2", "environment": {"OPMETER_HOLD_S": "2"}}
    # Shards on other nodes are slow, so that more than one shard runs on the faulty node.
    drill.launch_with_orders(lambda plan: {**bad, "delay_s": 15})
    drill.wait("its quarantine", lambda: "NodeQuarantined" in drill.reasons())
    drill.order(**bad)
    drill.finish()
    *_, last = drill.waves()
    assert last["avoid"] == ["node2"]
    assert set(drill.outcomes().values()) <= GOOD
