"""A drill: a node that the cluster gives up. It ends with a complete, verified database. Drained
and faulty nodes: long/test_long_drill_nodes.py."""

from contextlib import suppress

import pytest

from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_shards_of_a_lost_node_are_measured_in_a_successor_wave(drill: Drill, faults: Faults):
    drill.launch()
    drill.wait_committed(1)
    assert drill.namespace.find("podgroups") == [], "a wave of single workers is not a gang"
    pod = drill.catch_worker()
    node, index = pod["spec"]["nodeName"], index_of(pod)
    with faults.kubelet_stopped(node):
        for lost in drill.workers(node):  # else its running workers would still commit
            with suppress(RuntimeError):
                faults.kill_container(drill.namespace, lost["metadata"]["name"])
        drill.finish(1200)
        assert "NodeLost" in drill.reasons()
    first, *later = drill.waves()
    retried = {shard for wave in later for shards in wave["indexes"] for shard in shards}
    assert set(first["indexes"][index]) <= retried
    assert len(retried) <= 2, "only lost shards are measured again"
    assert set(drill.outcomes().values()) <= GOOD


def index_of(pod: dict) -> int:
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
