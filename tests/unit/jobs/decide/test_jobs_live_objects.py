"""Live objects as values: what a controller reads from Jobs, pods and nodes."""

import pytest

from jobs.decide.live_objects import (
    StateAges,
    aged,
    available_workers,
    job_view,
    job_views,
    node_views,
    pod_view,
    quantity,
    requested,
)
from jobs.decide.observed import NodeView, PodView
from jobs.objects.site import load_site

pytestmark = pytest.mark.fast

CPU, NPU = load_site("cpu"), load_site("a2-800t")


def a_job(**status):
    return {
        "metadata": {
            "name": "wave-1",
            "uid": "u1",
            "labels": {"app.kubernetes.io/component": "worker", "opmeter.io/wave": "w"},
            "annotations": {"opmeter.io/made-of": "m", "opmeter.io/held": "true"},
        },
        "spec": {"completions": 9, "parallelism": 3, "suspend": True},
        "status": status,
    }


def a_pod(name="p", node="n1", phase="Running", container=None, **metadata):
    labels = {"batch.kubernetes.io/job-name": "wave-1"}
    index = {"batch.kubernetes.io/job-completion-index": "4"}
    status = {"phase": phase}
    if container:
        sidecar = {"name": "istio-proxy", "state": {"running": {}}}
        status["containerStatuses"] = [sidecar, {"name": "worker", "state": container}]
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": index, **metadata},
        "spec": {"nodeName": node},
        "status": status,
    }


def test_job_is_read_with_its_indexes_and_its_end():
    done = {"type": "Failed", "status": "True", "reason": "FailedIndexes", "message": "x"}
    view = job_view(a_job(completedIndexes="0,2-4", failedIndexes="1", conditions=[done]))
    assert (view.succeeded, view.failed) == ({0, 2, 3, 4}, {1})
    assert (view.state, view.reason, view.is_live) == ("Failed", "FailedIndexes", False)
    assert view.suspended and view.held and view.made_of == "m"


def test_job_with_ending_pods_is_live():
    target = {"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy"}
    assert job_view(a_job(conditions=[target])).is_live


def test_ended_pod_has_an_exit_code_and_a_shard():
    words = '{"code": 44, "reason": "bad", "shard": "s1"}\n'
    ended = {"terminated": {"exitCode": 44, "reason": "Error", "message": words}}
    (pod,) = aged([pod_view(a_pod(phase="Failed", container=ended))], StateAges(lambda: 0.0))
    assert (pod.exit_code, pod.shard, pod.index, pod.has_ended) == (44, "s1", 4, True)
    assert pod.words == "bad" and not pod.refused
    for odd in ("", "[]", "Traceback ...", '"x"', "{}"):
        ended["terminated"]["message"] = odd
        assert aged([pod_view(a_pod(container=ended))], StateAges(lambda: 0.0))[0].shard == ""


def test_waiting_reason_of_a_pod_is_that_of_kubernetes():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    (pod,) = aged([pod_view(a_pod(phase="Pending", container=waiting))], StateAges(lambda: 0.0))
    assert pod.waiting == "ImagePullBackOff: no such image"
    waiting["waiting"] = {"reason": "ContainerCreating"}
    assert aged([pod_view(a_pod(container=waiting))], StateAges(lambda: 0.0))[0].waiting == ""


def test_age_of_a_pod_state_is_measured_by_the_own_clock():
    now = [100.0]
    since = StateAges(lambda: now[0])

    def age(pod):
        return aged([pod_view(pod)], since)[0].in_state_s

    assert age(a_pod(phase="Pending")) == 0
    now[0] += 30
    assert age(a_pod(phase="Pending")) == 30
    assert age(a_pod(phase="Running")) == 0
    now[0] += 5
    assert age(a_pod(phase="Running")) == 5
    aged([], since)
    assert age(a_pod(phase="Running")) == 0  # not remembered in between


def test_changed_message_does_not_change_the_pod_state():
    now = [0.0]
    since = StateAges(lambda: now[0])

    def age(**status):
        one = a_pod(phase="Pending", node=status.pop("node", "n1"))
        one["status"] |= status
        return aged([pod_view(one)], since)[0].in_state_s

    for reason in ("ErrImagePull", "ImagePullBackOff") * 4:
        state = {"waiting": {"reason": reason, "message": f"at {now[0]}"}}
        last = age(containerStatuses=[{"name": "worker", "state": state}])
        now[0] += 100.0
    assert last == 700.0
    for count in range(8):
        words = f"0/{count} nodes are available"
        condition = {"type": "PodScheduled", "status": "False", "message": words}
        last = age(node="", conditions=[condition])
        now[0] += 100.0
    assert last == 700.0


def test_pod_refused_by_a_kubelet_never_began():
    def is_refused(reason, node="n1", **status):
        one = a_pod(phase="Failed", node=node)
        one["status"] |= {"reason": reason, "message": "Pod was rejected: ...", **status}
        (pod,) = aged([pod_view(one)], StateAges(lambda: 0.0))
        assert pod.exit_code is None
        return pod.refused

    assert is_refused("UnexpectedAdmissionError")
    assert not is_refused("UnexpectedAdmissionError", node="")
    assert not is_refused("OutOfcpu") and not is_refused("NodeShutdown")
    target = {"type": "DisruptionTarget", "status": "True"}
    assert not is_refused("Evicted", conditions=[target])
    running = {"name": "worker", "state": {"running": {}}}
    assert not is_refused("", containerStatuses=[running])


def test_duration_of_a_suspension_is_measured():
    now = [0.0]
    since = StateAges(lambda: now[0])
    job_views([a_job()], since)
    now[0] = 40.0
    assert job_views([a_job(active=1)], since)[0].in_state_s == 40


def a_node(name, ready="True", **allocatable):
    return {
        "metadata": {"name": name, "labels": {"accelerator-type": "module-910b-8"}},
        "spec": {},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def test_free_devices_of_a_node_exclude_those_of_running_pods():
    site = load_site("a2-800t", {"node_selector": "", "shape": "device"})
    nodes = [a_node("n1", **{site.resource: "8"}), a_node("n2", "False", **{site.resource: "8"})]
    pods = [
        PodView("a", "a", "j", 0, "n1", "Running"),
        PodView("b", "b", "j", 1, "n1", "Failed"),
        PodView("c", "c", "j", 2, "", "Pending"),
    ]
    one, two = node_views(nodes, pods, site, {"n1": 3.0})
    assert one == NodeView("n1", True, True, 8, 4)
    assert not two.ready
    assert available_workers(64, site, (one, two), pods) == 5  # one that runs, and four free
    assert available_workers(3, site, (one, two), pods) == 3
    assert available_workers(64, site, (), pods) == 64  # nodes may not be listed
    assert available_workers(64, site, (two,), []) == 1  # never below one, which waits


def test_nodes_outside_of_the_site_selector_are_ignored():
    other = {"node_selector": "{accelerator-type: other}", "accelerator_type": "other"}
    site = load_site("a2-800t", other)
    assert node_views([a_node("n1")], [], site) == ()


def test_site_without_devices_counts_cpu_workers():
    (node,) = node_views([a_node("n1", cpu="3900m")], [], CPU)
    assert node.devices == CPU.devices_per_node == 1
    (node,) = node_views([a_node("n1", cpu="500m")], [], CPU)
    assert node.devices == 0
    (node,) = node_views([a_node("n1", cpu="4")], [], CPU, {"n1": 3.5})
    assert node.free_devices == 0


def test_requests_of_other_pods_are_summed_by_node():
    def pod(node, *requests):
        containers = [{"resources": {"requests": r}} for r in requests] + [{}]
        return {"spec": {"nodeName": node, "containers": containers}}

    name = NPU.resource
    pods = [pod("n1", {name: "2"}, {name: "1"}), pod("n1", {"cpu": "1"}), pod("", {name: "8"})]
    assert requested(pods, NPU) == {"n1": 3.0}
    assert requested([pod("n2", {"cpu": "250m"}, {"cpu": 1})], CPU) == {"n2": 1.25}


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("500m", 0.5), ("1k", 1000), ("?", 0)])
def test_quantities_are_parsed_as_kubernetes_writes_them(text, value):
    assert quantity(text) == value


def test_job_view_has_its_queue_and_the_origin_of_its_suspension():
    def seen(labels=(), **notes):
        annotations = {f"opmeter.io/{key}": value for key, value in notes.items()}
        metadata = {"name": "j", "uid": "u", "labels": dict(labels), "annotations": annotations}
        return job_view({"metadata": metadata, "spec": {"suspend": True}})

    assert seen().queue == "" and not seen().stopped and seen().resumed == 0
    assert seen({"kueue.x-k8s.io/queue-name": "team"}).queue == "team"
    assert seen(held="true").stopped and seen(held="true").held
    assert seen(held="false").stopped and not seen(held="false").held
    assert seen(resumed="2").resumed == 2
    assert {seen(resumed=text).resumed for text in ("", "-1", "x", "9" * 5000)} == {0}
