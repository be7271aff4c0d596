"""Nodes behave like real ones: their containers, and their failures."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import Faults
from tests.cluster.namespace import Namespace
from tests.cluster.pods import job, pod
from tests.cluster.testbed import preloaded
from tests.cluster.testbed.testbed import Testbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


_SLEEP = ["sleep", "300"]


_RESOURCE = "huawei.com/Ascend910"


def _allocatable(cluster: Cluster, node: str) -> str:
    return str(cluster.kubectl.objects.get("nodes", node)["status"]["allocatable"][_RESOURCE])


def test_nodes_share_the_files_of_images_and_no_database(cluster: Cluster, testbed: Testbed):
    assert cluster.controller_image in testbed.nodes[0].ctr("images", "ls", "-q").split()
    one, other = (node.folder / "containerd/root" for node in testbed.nodes)
    if testbed.settings.cache.stat().st_dev != one.stat().st_dev:
        pytest.skip("links require one disk: put OPMETER_CACHE and OPMETER_CLUSTER_RUN on the same")
    (filled,) = preloaded.fillings(testbed.settings.cache)  # more were loaded by tests before
    held = filled / "containerd/root"
    blobs = [
        blob.relative_to(held)
        for blob in held.glob("*content*/blobs/sha256/*")
        if blob.stat().st_size > 1 << 20
    ]
    assert blobs and all((one / blob).samefile(other / blob) for blob in blobs)
    databases = list(one.glob("*/*.db"))
    assert len(databases) >= 2
    assert all(database.stat().st_nlink == 1 for database in databases)


def test_unhealthy_device_is_not_counted_until_it_recovers(
    cluster: Cluster, namespace: Namespace, faults: Faults
):
    with faults.unhealthy("node1", 0, 5):
        namespace.wait("two devices leave", lambda: _allocatable(cluster, "node1") == "6", 30)
    namespace.wait("they come back", lambda: _allocatable(cluster, "node1") == "8", 30)


def test_killed_container_counts_as_a_failure_and_is_replaced(
    cluster: Cluster, namespace: Namespace, faults: Faults
):
    sleeper = pod("unused", cluster.controller_image, _SLEEP)
    namespace.create(job("killed", sleeper, completions=1, parallelism=1, backoffLimit=2))
    namespace.wait("a pod", lambda: len(namespace.pods()) == 1)
    first = namespace.pods()[0]["metadata"]["name"]
    namespace.wait_running(first)
    faults.kill_container(namespace, first)
    assert namespace.end_of(first).exit_code == 137
    namespace.wait("a second pod", lambda: len(namespace.pods()) == 2)


def test_node_without_its_kubelet_is_lost_and_returns_with_its_devices(
    cluster: Cluster, namespace: Namespace, faults: Faults
):
    def status() -> str:
        conditions = cluster.kubectl.objects.get("nodes", "node2")["status"]["conditions"]
        return next(str(c["status"]) for c in conditions if c["type"] == "Ready")

    with faults.kubelet_stopped("node2"):
        namespace.wait("node2 is not ready", lambda: status() == "Unknown", 90)
    namespace.wait("its devices return", lambda: _allocatable(cluster, "node2") == "8", 60)
    command = ["sh", "-c", "echo $ASCEND_VISIBLE_DEVICES"]
    again = pod("again", cluster.controller_image, command, devices=8)
    again["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node2"}
    assert namespace.run(again).log.strip() == "0,1,2,3,4,5,6,7"


def test_node_runs_pods_again_after_a_power_loss(
    cluster: Cluster, namespace: Namespace, faults: Faults
):
    namespace.create(pod("gone", cluster.controller_image, _SLEEP, node="node2"))
    namespace.wait_running("gone")
    with faults.node_dead("node2"):
        pass
    after = pod("after", cluster.controller_image, ["true"], node="node2")
    assert namespace.run(after).exit_code == 0


def test_drained_node_evicts_its_pods_and_accepts_none(
    cluster: Cluster, namespace: Namespace, faults: Faults
):
    sleeper = pod("moved", cluster.controller_image, _SLEEP)
    namespace.create(job("moved", sleeper, completions=1, parallelism=1, backoffLimit=0))
    namespace.wait("a pod", lambda: len(namespace.pods()) == 1)
    first = namespace.pods()[0]["metadata"]["name"]
    namespace.wait_running(first)
    node = namespace.pods()[0]["spec"]["nodeName"]
    with faults.drained(node):
        unschedulable = cluster.kubectl.objects.get("nodes", node)["spec"]["unschedulable"]
        left = [p for p in namespace.pods() if p["metadata"]["name"] == first]
    assert unschedulable is True
    assert not left or "deletionTimestamp" in left[0]["metadata"] or _is_over(left[0])


def _is_over(found: dict) -> bool:
    return found["status"]["phase"] in ("Failed", "Succeeded")
