"""Drills: gangs whose ranks are those of several pods. Each ends with a complete, verified
database."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.drill import WORKERS, Drill
from tests.cluster.faults import Faults
from tests.cluster.gangs import as_gang
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_NPU = "huawei.com/Ascend910"
_INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture
def gang(drill: Drill) -> Drill:
    """A drill whose campaign is one gang over both nodes."""
    as_gang(drill)
    return drill


@pytest.fixture
def foreign(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of other people."""
    made = cluster.make_namespace()
    yield made
    made.remove()


def wait_for_both(gang: Drill) -> None:
    gang.wait("both pods run", lambda: len(gang.workers()) == 2)


def check(gang: Drill) -> None:
    """All is measured well, by one Job: whatever was lost of it was made anew in it."""
    gang.finish()
    assert set(gang.outcomes().values()) == {"ok"}
    (wave,) = gang.waves()
    assert wave["pods"] == 2


def test_no_rank_of_a_gang_starts_before_all_can_and_the_api_server_may_leave_then(
    gang: Drill, faults: Faults, foreign: Namespace
):
    """The cluster takes the Job for a gang of its own: its pods are scheduled together."""
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
    gang.look_on(15)
    pods = gang.namespace.pods(WORKERS)
    assert [pod["status"]["phase"] for pod in pods] == ["Pending", "Pending"]
    assert len({pod["spec"]["schedulingGroup"]["podGroupName"] for pod in pods}) == 1
    foreign("delete", "pod", "holds-node2", "--wait=false")
    wait_for_both(gang)
    assert {pod["spec"]["nodeName"] for pod in gang.workers()} == {"node1", "node2"}
    with faults.api_server_down():
        gang.look_on(20)
    check(gang)


def test_pods_of_a_gang_are_killed_and_the_gang_meets_again(gang: Drill, faults: Faults):
    """First one that lends its ranks, then the one that measures."""
    gang.launch()
    for index in ("1", "0"):
        wait_for_both(gang)
        gang.look_on(8)  # until ranks have begun
        (victim,) = (p for p in gang.workers() if p["metadata"]["labels"][_INDEX] == index)
        name = victim["metadata"]["name"]
        with suppress(RuntimeError):
            faults.kill_container(gang.namespace, name)
        gang.wait("it is gone", partial(is_gone, gang, name))
    check(gang)


def is_gone(gang: Drill, name: str) -> bool:
    return name not in {worker["metadata"]["name"] for worker in gang.workers()}


def test_a_node_of_a_gang_loses_power_in_the_middle(gang: Drill, faults: Faults):
    gang.launch()
    wait_for_both(gang)
    gang.look_on(10)
    with faults.node_dead("node2"):
        gang.look_on(30)
    check(gang)
