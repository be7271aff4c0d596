"""Drills: who waits for whom. A queue that admits and pre-empts, played by hand as Kueue plays it
(`spec.suspend`), and devices that are free one by one."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.drill import GOOD, WORKERS, Drill
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_NPU = "huawei.com/Ascend910"


def the_job(drill: Drill) -> dict:
    """The one Job of workers."""
    (job,) = drill.namespace.get("jobs", "-l", WORKERS)["items"]
    return dict(job)


def suspend(drill: Drill, on: bool) -> None:
    """As Kueue does it: admitted, or pre-empted."""
    job = the_job(drill)["metadata"]["name"]
    patch = json.dumps({"spec": {"suspend": on}})
    drill.namespace("patch", "job", job, "--type=merge", "-p", patch)


def test_a_queued_campaign_is_admitted_pre_empted_and_resumed_without_losing_a_shard(drill: Drill):
    drill.site += "kueue_queue: team\n"
    drill.launch()
    drill.wait("its wave is made", lambda: bool(drill.waves()))
    drill.wait("its Job is made", lambda: bool(drill.namespace.get("jobs", "-l", WORKERS)["items"]))
    job = the_job(drill)
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    suspend(drill, False)
    drill.wait_committed(2)
    suspend(drill, True)
    drill.wait("its pods have ended", lambda: not drill.workers())
    before = drill.commits()
    drill.look_on(20)
    held = the_job(drill)
    assert held["spec"]["suspend"] is True
    assert held["spec"]["parallelism"] == job["spec"]["parallelism"]
    suspend(drill, False)
    drill.finish()
    assert before.items() <= drill.commits().items()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


@pytest.fixture
def foreign(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of other people, whose pods the controller may not list."""
    made = cluster.make_namespace()
    yield made
    made.remove()


def test_a_wave_starts_with_the_one_device_that_is_free_and_is_no_gang(
    drill: Drill, foreign: Namespace
):
    """The cluster makes a gang of a Job with as many pods at once as completions."""
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
    assert namespace.get("podgroups.scheduling.k8s.io")["items"] == []
    foreign("delete", "pod", "holds-node1", "--wait=false")
    drill.wait("several run", lambda: len(drill.workers()) > 1)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
