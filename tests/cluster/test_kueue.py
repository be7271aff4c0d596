"""Drills with a real Kueue, which labels, suspends, admits, evicts and gives up as it likes.

It is built from its Go modules and run with its own webhooks and permissions, or it is the one of
the cluster that KUBECONFIG names. Where neither can be had, a class plays it in
tests/unit/jobs/decide/test_jobs_queued_waves.py.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.drill import GOOD, WORKERS, Drill
from tests.cluster.gangs import as_gang
from tests.cluster.testbed.kueue import MANAGED, build_kueue, install_kueue, remove_kueue
from tests.cluster.testbed.settings import NoCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

READY_S = 40
# Half a dozen shards: what is tried is who starts them.
OPERATORS, FEW = re.compile(r"operators: \[[^]]*\]"), "[NotEqual, Sub, Abs, Greater, Sin, SwiGlu]"
SETTINGS: dict[str, Any] = {
    "manageJobsWithoutQueueName": True,
    "waitForPodsReady": {
        "timeout": f"{READY_S}s",
        "requeuingStrategy": {"backoffLimitCount": 1, "backoffBaseSeconds": 5},
    },
}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[None]:
    """A Kueue that manages namespaces of a label, jobs without a queue's name too, and wants pods
    to be ready in 40 s."""
    own = cluster.own
    try:
        built = build_kueue(own.settings.cache)
    except NoCluster as error:
        pytest.skip(str(error))
    own.load(built.image)
    install_kueue(built, cluster.kubectl, SETTINGS)
    yield
    remove_kueue(built, cluster.kubectl)


class Queue:
    """A ClusterQueue of a drill's own, and the LocalQueue of its namespace."""

    def __init__(self, drill: Drill):
        self.drill = drill
        self.name = drill.namespace.name
        labels = [f"{key}={value}" for key, value in MANAGED.items()]
        drill.namespace.kubectl("label", "namespace", self.name, *labels)
        drill.text = OPERATORS.sub(f"operators: {FEW}", drill.text)

    def make(self, local: str, cpus: float, hold: str = "None") -> None:
        """`cpus` is its quota, of which a worker takes 0.8 and a merge 1."""
        flavor = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": self.name},
        }
        self.drill.namespace.kubectl.apply(flavor, self._cluster_queue(cpus, hold))
        self.drill.namespace.kubectl.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "LocalQueue",
                "metadata": {"name": local, "namespace": self.name},
                "spec": {"clusterQueue": self.name},
            }
        )

    def change(self, cpus: float, hold: str = "None") -> None:
        self.drill.namespace.kubectl.apply(self._cluster_queue(cpus, hold))

    def jobs(self) -> list[Any]:
        """Of workers, that have not ended."""
        found = self.drill.namespace.find("jobs", WORKERS)
        return [job for job in found if not job["status"].get("completionTime")]

    def evictions(self) -> list[str]:
        """Why Kueue took quota back."""
        events = self.drill.namespace.find("events")
        return [e["message"] for e in events if e["reason"].startswith("Evicted")]

    def remove(self) -> None:
        for kind in ("clusterqueue", "resourceflavor"):
            name = f"{kind}s.kueue.x-k8s.io"
            self.drill.namespace.kubectl("delete", name, self.name, "--wait=false")

    def _cluster_queue(self, cpus: float, hold: str) -> dict[str, Any]:
        quotas = {"cpu": str(cpus), "memory": "1Ti", "ephemeral-storage": "1Ti"}
        resources = [{"name": k, "nominalQuota": v} for k, v in quotas.items()]
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": self.name},
            "spec": {
                "namespaceSelector": {},
                "stopPolicy": hold,
                "resourceGroups": [
                    {
                        "coveredResources": list(quotas),
                        "flavors": [{"name": self.name, "resources": resources}],
                    }
                ],
            },
        }


@pytest.fixture
def queue(kueue: None, drill: Drill) -> Iterator[Queue]:
    made = Queue(drill)
    yield made
    drill.opmeter.end()
    made.remove()


def test_a_namespace_whose_queue_takes_every_job_is_not_fought(queue: Queue, drill: Drill):
    """The site names no queue; Kueue labels every Job, and starts two at a time."""
    queue.make("default", cpus=1.6)
    drill.apply()
    controller = drill.controller()
    drill.finish()
    assert "Suspend(" not in controller.said and "Scale(" not in controller.said
    assert "Queued" in drill.reasons() and "SuspendedByOthers" not in drill.reasons()
    assert set(drill.outcomes().values()) <= GOOD
    assert not queue.evictions()


def test_a_gang_is_admitted_whole_or_not_at_all(queue: Queue, drill: Drill):
    as_gang(drill)
    drill.site += "kueue_queue: team\n"
    queue.make("team", cpus=1.2)
    drill.launch()
    drill.wait("its Job waits", lambda: len(queue.jobs()) == 1)
    drill.look_on(10)
    (job,) = queue.jobs()
    assert job["spec"]["suspend"] and job["spec"]["parallelism"] == 2
    assert drill.namespace.pods(WORKERS) == []
    queue.change(cpus=2.0)
    drill.finish()
    assert set(drill.outcomes().values()) == {"ok"}
    assert len(drill.waves()) == 1


def test_a_held_queue_is_told_a_pause_starts_nothing_and_quota_that_is_back_is_used(
    queue: Queue, drill: Drill
):
    """The namespace is one where Kueue starts nothing that names no queue: the merge too."""
    drill.site += "kueue_queue: team\n"
    queue.make("team", cpus=0.8)
    drill.launch()
    drill.wait("its wave is made", lambda: bool(drill.waves()))
    queue.change(cpus=0.8, hold="HoldAndDrain")
    drill.wait("one waits", lambda: any(job["spec"]["suspend"] for job in queue.jobs()))
    drill.wait("nothing runs", lambda: not drill.workers())
    told = drill.opmeter("status", drill.name, "--root", drill.root, *_in(drill))
    assert "stopped" in told and "stopPolicy" in told
    drill.opmeter("pause", drill.name, *_in(drill))
    drill.wait("what waits is taken off", lambda: not queue.jobs())
    # A pod that is being ended may still commit what it has measured.
    drill.wait("no pod is left", lambda: not drill.namespace.pods(WORKERS))
    before = drill.committed()
    queue.change(cpus=0.8)
    drill.look_on(15)
    assert not drill.workers() and drill.committed() == before
    drill.order(delay_s=3.0)
    drill.opmeter("pause", drill.name, "--resume", *_in(drill))
    drill.wait("one runs", lambda: len(drill.workers()) == 1)
    queue.change(cpus=2.0)
    drill.wait("two run", lambda: len(drill.workers()) == 2)
    drill.order()
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    merges = drill.namespace.find("jobs", "app.kubernetes.io/component=merge")
    assert [job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for job in merges] == ["team"]


def test_room_for_fewer_pods_than_are_admitted_is_never_no_progress(queue: Queue, drill: Drill):
    """More are admitted than there is room for: those that wait are evicted after 40 s, and given
    up the second time."""
    drill.text = drill.text.replace("devices: 2", "devices: 8")
    drill.site = drill.site.replace("cpu: 800m", "cpu: 1500m") + "kueue_queue: team\n"
    queue.make("team", cpus=9.0)
    drill.order(delay_s=READY_S + 15.0)  # of those that found room, one on each node
    drill.launch()
    drill.wait("some wait", lambda: bool(_pending(drill)))
    drill.wait("some are evicted", lambda: any("PodsReady" in why for why in queue.evictions()))
    drill.order()
    drill.wait("those that found room go on", lambda: drill.committed() >= 2)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD


def _pending(drill: Drill) -> list[Any]:
    found = drill.namespace.pods(WORKERS)
    return [pod for pod in found if pod["status"].get("phase") == "Pending"]


def _in(drill: Drill) -> tuple[str, str]:
    return "--namespace", drill.namespace.name
