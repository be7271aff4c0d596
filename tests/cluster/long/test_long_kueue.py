"""Drills with a real Kueue, which labels, suspends, admits, evicts and gives up as it likes."""

from typing import Any

import pytest

from tests.cluster.drill import GOOD, WORKERS, Drill
from tests.cluster.queues import READY_S, Queue

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


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
