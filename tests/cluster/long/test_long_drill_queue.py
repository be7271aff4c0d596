"""A drill: waiting for devices that become free one by one. Queues: see test_long_kueue.py."""

import pytest

from tests.cluster.drill import GOOD, WORKERS, Drill
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_NPU = "huawei.com/Ascend910"


def test_wave_starts_on_one_free_device_without_gang_scheduling(drill: Drill, foreign: Namespace):
    """The cluster makes a gang of a Job with as many concurrent pods as completions."""
    drill.site = drill.site.replace("devices_per_node: 1", "devices_per_node: 8")
    drill.site = drill.site.replace("cpu: 800m", f"resource: {_NPU}\ncpu: 300m")
    drill.text = drill.text.replace("devices: 2", "devices: 3")
    image, namespace = drill.cluster.controller_image, drill.namespace
    for node, devices in (("node1", 8), ("node2", 7)):
        holds = pod(f"holds-{node}", image, ["sleep", "3600"], devices=devices, node=node)
        foreign.create(holds)
        foreign.wait_running(f"holds-{node}")
    drill.launch()
    drill.wait_committed(2)
    states = [p["status"].get("phase") for p in namespace.pods(WORKERS)]
    assert states.count("Pending") >= 1, "the others wait, and this one does not wait for them"
    assert namespace.find("podgroups") == []
    foreign("delete", "pod", "holds-node1", "--wait=false")
    drill.wait("several run", lambda: len(drill.workers()) > 1)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
