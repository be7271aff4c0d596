"""The control plane behaves like a real one: its version, gang scheduling, outages, JobSet and
kwok."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.faults import Faults
from tests.cluster.namespace import Namespace
from tests.cluster.pods import job, pod
from tests.cluster.testbed.build import version
from tests.cluster.testbed.testbed import Testbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_RESOLVE = """
import socket
print(socket.gethostbyname("{name}.peers.{namespace}.svc.cluster.local"))
try:
    socket.gethostbyname("outside.example")
except OSError as error:
    print("outside:", error)
"""


def _running(namespace: Namespace, label: str) -> int:
    pods = namespace.pods(f"opmeter-test={label}")
    return sum(p["status"]["phase"] == "Running" for p in pods)


def test_api_server_has_the_built_version(testbed: Testbed):
    message = testbed.kubectl("version", "-o", "json")
    assert f'"gitVersion": "v{version()}"' in message.split("serverVersion")[1]


def test_job_of_equal_completions_and_parallelism_waits_for_all_its_devices(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    assert len(testbed.nodes) == 2
    image = cluster.controller_image
    busy = pod("busy", image, ["sleep", "300"], devices=8)
    namespace.create(busy)
    namespace.wait_running("busy")
    sleeper = pod("unused", image, ["sleep", "2"], devices=8)
    namespace.create(job("gang", sleeper, completions=2, parallelism=2))
    namespace.wait("both pods exist", lambda: len(namespace.pods("opmeter-test=gang")) == 2)
    with pytest.raises(AssertionError, match="one of them starts"):
        namespace.wait("one of them starts", lambda: _running(namespace, "gang") > 0, 8)
    namespace("delete", "pod", "busy", "--grace-period=1")
    namespace("wait", "--for=condition=Complete", "job/gang", "--timeout=120s")


def test_job_of_less_parallelism_than_completions_starts_on_free_devices(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    assert len(testbed.nodes) == 2
    image = cluster.controller_image
    namespace.create(pod("busy", image, ["sleep", "300"], devices=8))
    namespace.wait_running("busy")
    sleeper = pod("unused", image, ["sleep", "1"], devices=8)
    namespace.create(job("shards", sleeper, completions=3, parallelism=2))
    namespace("wait", "--for=condition=Complete", "job/shards", "--timeout=120s")


def test_restarted_api_server_has_kept_its_objects(
    testbed: Testbed, namespace: Namespace, faults: Faults
):
    with faults.api_server_down():
        assert not testbed.control_plane.answers()
    assert namespace.pods() == []


def test_pods_are_resolved_by_the_names_of_a_headless_service(
    cluster: Cluster, namespace: Namespace
):
    peer = pod("peer", cluster.controller_image, ["sleep", "300"])
    peer["spec"] |= {"hostname": "rank-0", "subdomain": "peers"}
    ports = [{"port": 80}]
    spec = {"clusterIP": "None", "selector": {"opmeter-test": "pod"}, "ports": ports}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"}, "spec": spec}
    namespace.create(service, peer)
    namespace.wait_running("peer")
    address = namespace.get("pods", "peer")["status"]["podIP"]
    script = _RESOLVE.format(name="rank-0", namespace=namespace.name)
    script = f"import time; time.sleep(3)\n{script}"  # as long as the names take to arrive
    ended = namespace.run(pod("asks", cluster.controller_image, ["python3", "-c", script]))
    assert ended.log.startswith(f"{address}\noutside:"), ended.log


def test_jobset_restarts_every_rank_when_one_fails(
    cluster: Cluster, testbed: Testbed, namespace: Namespace
):
    testbed.install_jobset()
    label = {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}
    attempt = {"name": "ATTEMPT", "valueFrom": {"fieldRef": label}}
    script = 'test "$JOB_COMPLETION_INDEX" = 0 || test "$ATTEMPT" = 1'
    rank = pod("unused", cluster.controller_image, ["sh", "-c", script])
    rank["spec"]["containers"][0]["env"].append(attempt)
    template = {"spec": job("unused", rank, completions=2, parallelism=2, backoffLimit=0)["spec"]}
    namespace.create(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "gang"},
            "spec": {
                "failurePolicy": {"maxRestarts": 2},
                "replicatedJobs": [{"name": "rank", "replicas": 1, "template": template}],
            },
        }
    )
    namespace("wait", "--for=condition=Completed", "jobset/gang", "--timeout=120s")
    assert namespace.get("jobsets", "gang")["status"]["restarts"] == 1


@pytest.mark.parametrize(("jobs", "pods", "starts"), [(1, 2, 0), (2, 1, 1)])
def test_jobset_of_one_job_waits_for_an_occupied_node(
    cluster: Cluster, testbed: Testbed, namespace: Namespace, jobs: int, pods: int, starts: int
):
    """A Job that is a gang is held back, not the set: of one Job per rank the first begins alone
    (decision 0013)."""
    testbed.install_jobset()
    image = cluster.controller_image
    namespace.create(pod("busy", image, ["sleep", "300"], devices=8))
    namespace.wait_running("busy")
    rank = pod("unused", image, ["sleep", "60" if starts else "2"], devices=8)
    template = {"spec": job("ranks", rank, completions=pods, parallelism=pods)["spec"]}
    replicated = [{"name": "rank", "replicas": jobs, "template": template}]
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    namespace.create(kind | {"metadata": {"name": "gang"}, "spec": {"replicatedJobs": replicated}})
    namespace.wait("both pods exist", lambda: len(namespace.pods("opmeter-test=ranks")) == 2)
    if starts:
        namespace.wait("one of them starts", lambda: _running(namespace, "ranks") == starts)
        return
    with pytest.raises(AssertionError, match="one of them starts"):
        namespace.wait("one of them starts", lambda: _running(namespace, "ranks") > 0, 8)
    namespace("delete", "pod", "busy", "--grace-period=1")
    namespace("wait", "--for=condition=Completed", "jobset/gang", "--timeout=120s")


def test_kwok_completes_the_pods_of_simulated_nodes(testbed: Testbed, namespace: Namespace):
    kwok = testbed.kwok
    try:
        kwok.add_nodes(4, devices=8)
        simulated = pod("unused", "never-pulled", ["true"], devices=8)
        simulated["spec"] |= {
            "nodeSelector": {"type": "kwok"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        }
        namespace.create(job("fleet", simulated, completions=12, parallelism=4))
        namespace("wait", "--for=condition=Complete", "job/fleet", "--timeout=120s")
    finally:
        kwok.stop()
