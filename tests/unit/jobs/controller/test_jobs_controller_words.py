"""A controller reports the steps that it cannot do, once and for the right campaign: the real
controller on a simulated cluster and a real store."""

import copy

import pytest

from collector.model import keys
from jobs.controller import current_plan
from jobs.kube.errors import cluster_error
from jobs.objects.applied_campaign import (
    ALLOW_MISSING,
    PAUSED,
    config_map,
    config_map_name,
)
from jobs.planning.lifecycle import read_state
from tests.unit.jobs.controller.simulated_campaign import (
    DEPLOYMENT,
    MAP,
    STACK,
    Simulation,
)
from tests.unit.jobs.fake_cluster import COMPONENT
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_damaged_database_is_announced_with_a_hint():
    simulation = Simulation().run()
    simulation.store.delete(keys.commit(1))
    simulation.cases += 1  # which makes the next plan
    simulation.apply()
    simulation.rounds(2)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Damaged"]
    assert keys.commit(1) in event["message"] and "opmeter db verify" in event["message"]
    assert "BadInput" not in simulation.cluster.reasons()


def test_failing_merge_is_announced_once_and_retried_when_its_job_is_gone():
    simulation = Simulation(cases=6)
    simulation.cluster.merges_fail = "no space"
    simulation.rounds(12)
    merges = [name for name in simulation.cluster.created if "-merge-" in name]
    assert len(merges) == 1
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "MergeFailed"]
    assert "no space" in event["message"]
    simulation.cluster.merges_fail = ""
    del simulation.cluster.live[merges[0]]  # by its time to live
    simulation.run().check_complete()


def test_refusal_of_the_cluster_is_announced_and_retried():
    simulation = Simulation(cases=6)
    simulation.cluster.forbidden = frozenset({"create"})
    simulation.rounds(4)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    assert len(simulation.waves()) == 1
    simulation.cluster.forbidden = frozenset()
    simulation.run().check_complete()


def test_refused_probe_is_announced_and_retried():
    simulation = Simulation(cases=6, target="target: here")
    simulation.cluster.stack = STACK
    simulation.cluster.forbidden = frozenset({"create"})
    simulation.rounds(3)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    simulation.cluster.forbidden = frozenset()
    simulation.run().check_complete()


def test_failing_webhook_is_announced_as_a_refusal():
    simulation = Simulation(cases=6)
    words = 'Internal error occurred: failed calling webhook "policy.example.com": EOF'

    def fail(number, name):
        if name == "create_or_adopt":
            raise cluster_error(500, words)

    simulation.cluster.before = fail
    simulation.rounds(3)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Refused"]
    assert words in event["message"]
    simulation.cluster.before = lambda number, name: None
    simulation.run().check_complete()


def test_unchanged_state_is_announced_once():
    simulation = Simulation(cases=6)
    simulation.cluster.worker = lambda shard, node: 43
    simulation.rounds(3)
    simulation.cluster.reported.clear()
    simulation.rounds(5)
    assert not simulation.cluster.reported


@pytest.mark.thorough
def test_invalid_config_map_is_announced_and_affects_no_other():
    simulation = Simulation(cases=6)
    bad = config_map("other", "campaign: other\n", {"site": "cpu"}, DEPLOYMENT)
    simulation.cluster.apply(bad)
    simulation.run().check_complete()
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "BadInput"]
    assert "sources" in event["message"]


def test_error_in_one_campaign_ends_no_other(monkeypatch):
    simulation = Simulation(cases=6)
    other = copy.deepcopy(simulation.cluster.maps[MAP])
    name = config_map_name("broken")
    other["metadata"] |= {"name": name, "labels": {"opmeter.io/campaign": "broken"}}
    other["data"]["campaign.yaml"] = other["data"]["campaign.yaml"].replace("small", "broken")
    simulation.cluster.apply(other)

    def read(campaign, *more):
        assert campaign.name == "small"
        return read_state(campaign, *more)

    monkeypatch.setattr(current_plan.lifecycle, "read_state", read)
    simulation.run().check_complete()
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "InternalError"]
    assert "AssertionError" in event["message"]


def test_only_the_config_map_named_after_its_campaign_is_used():
    simulation = Simulation(cases=6)
    other = copy.deepcopy(simulation.cluster.maps[MAP])
    other["metadata"]["name"] = "the-other"
    other["data"]["image"] = "evil/collector:1"
    simulation.cluster.apply(other)
    simulation.run().check_complete()
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "BadInput"]
    assert missing(event["message"], ["'small'", MAP]) == []


def test_events_of_a_starting_pod_are_forwarded():
    simulation = Simulation(cases=24, site={"site.kueue_queue": "team"})
    simulation.reconcile()
    (job,) = simulation.cluster.worker_jobs()
    job["spec"]["suspend"] = False
    pod = simulation.cluster._pod(job["metadata"]["name"], job, 0)
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    simulation.cluster.running = [pod]
    words = 'MountVolume.SetUp failed for volume "store" : secret "opmeter-s3" not found'
    simulation.cluster.warnings[pod["metadata"]["name"]] = ["older", words]
    simulation.reconcile()
    simulation.reconcile(after_s=500.0)
    assert "NotStarting" not in simulation.cluster.reasons()
    simulation.reconcile(after_s=200.0)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "NotStarting"]
    assert words in event["message"] and "store_secret" in event["message"]


def test_the_annotations_are_those_of_the_manual():
    assert (PAUSED, ALLOW_MISSING) == ("opmeter.io/paused", "opmeter.io/allow-missing")
    assert COMPONENT == "app.kubernetes.io/component"
