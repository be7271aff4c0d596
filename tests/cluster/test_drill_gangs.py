"""A drill: a gang whose ranks are those of several pods, which the cluster schedules together. It
ends with a complete, verified database. Gangs that lose pods: long/test_long_drill_gangs.py."""

import pytest

from tests.cluster.drill import WORKERS, Drill
from tests.cluster.faults import Faults
from tests.cluster.gangs import check_gang, wait_for_both
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_NPU = "huawei.com/Ascend910"


def test_ranks_of_a_gang_start_together_and_survive_an_api_server_outage(
    gang: Drill, faults: Faults, foreign: Namespace
):
    """The cluster schedules all pods of the gang together."""
    gang.site = gang.site.replace("devices_per_node: 1", "devices_per_node: 8")
    gang.site = gang.site.replace("cpu: 800m", f"resource: {_NPU}\ncpu: 800m")
    foreign.create(
        pod(
            "holds-node2", gang.cluster.controller_image, ["sleep", "3600"], devices=8, node="node2"
        )
    )
    foreign.wait_running("holds-node2")
    gang.launch()
    gang.wait("its pods are there", lambda: len(gang.namespace.pods(WORKERS)) == 2)
    (job,) = gang.namespace.find("jobs", "opmeter.io/kind=gang")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    gang.observe(15)
    pods = gang.namespace.pods(WORKERS)
    assert [pod["status"]["phase"] for pod in pods] == ["Pending", "Pending"]
    assert len({pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}) == 1
    foreign("delete", "pod", "holds-node2", "--wait=false")
    wait_for_both(gang)
    assert {pod["spec"]["nodeName"] for pod in gang.workers()} == {"node1", "node2"}
    with faults.api_server_down():
        gang.observe(20)
    check_gang(gang)
