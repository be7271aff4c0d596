"""Drills with a real Kueue, which labels, suspends, admits, evicts and gives up Jobs."""

from typing import Any

import pytest

from tests.cluster.drill import GOOD, WORKERS, Drill
from tests.cluster.queues import READY_S, Queue

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_default_queue_of_a_namespace_is_respected(queue: Queue, drill: Drill):
    """The site names no queue; Kueue labels every Job, and starts two at a time."""
    queue.make("default", cpus=1.6)
    drill.apply()
    controller = drill.controller()
    drill.finish()
    assert "Suspend(" not in controller.message and "Scale(" not in controller.message
    assert "Queued" in drill.reasons() and "SuspendedByOthers" not in drill.reasons()
    assert set(drill.outcomes().values()) <= GOOD
    assert not queue.evictions()


def test_held_queue_is_reported_and_returned_quota_is_used(queue: Queue, drill: Drill):
    """The namespace is one where Kueue starts no Job without a queue name, including the merge."""
    drill.site += "kueue_queue: team\n"
    queue.make("team", cpus=0.8)
    drill.launch()
    drill.wait("its wave is made", lambda: bool(drill.waves()))
    queue.change(cpus=0.8, hold="HoldAndDrain")
    drill.wait("one waits", lambda: any(job["spec"]["suspend"] for job in queue.jobs()))
    drill.wait("nothing runs", lambda: not drill.workers())
    reported = drill.opmeter("status", drill.name, "--root", drill.root, *_in(drill))
    assert "stopped" in reported and "stopPolicy" in reported
    drill.opmeter("pause", drill.name, *_in(drill))
    drill.wait("what waits is taken off", lambda: not queue.jobs())
    # A pod that is being deleted may still commit its results.
    drill.wait("no pod is left", lambda: not drill.namespace.pods(WORKERS))
    before = drill.committed()
    queue.change(cpus=0.8)
    drill.observe(15)
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


def test_insufficient_nodes_for_admitted_pods_do_not_stop_progress(queue: Queue, drill: Drill):
    """More pods are admitted than fit: the waiting ones are evicted after 40 s, and given up the
    second time."""
    drill.text = drill.text.replace("devices: 2", "devices: 8")
    drill.site = drill.site.replace("cpu: 800m", "cpu: 1500m") + "kueue_queue: team\n"
    queue.make("team", cpus=9.0)
    drill.order(delay_s=READY_S + 15.0)  # of those that fit, one on each node
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
