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
from tests.unit.jobs.controller.played_campaign import (
    DEPLOYMENT,
    MAP,
    STACK,
    Play,
)
from tests.unit.jobs.fake_cluster import COMPONENT
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_damaged_database_is_announced_with_a_hint():
    play = Play().play()
    play.store.delete(keys.commit(1))
    play.cases += 1  # which makes the next plan
    play.apply()
    play.rounds(2)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Damaged"]
    assert keys.commit(1) in event["message"] and "opmeter db verify" in event["message"]
    assert "BadInput" not in play.cluster.reasons()


def test_failing_merge_is_announced_once_and_retried_when_its_job_is_gone():
    play = Play(cases=6)
    play.cluster.merges_fail = "no space"
    play.rounds(12)
    merges = [name for name in play.cluster.created if "-merge-" in name]
    assert len(merges) == 1
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "MergeFailed"]
    assert "no space" in event["message"]
    play.cluster.merges_fail = ""
    del play.cluster.live[merges[0]]  # by its time to live
    play.play().check_complete()


def test_refusal_of_the_cluster_is_announced_and_retried():
    play = Play(cases=6)
    play.cluster.forbidden = frozenset({"create"})
    play.rounds(4)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    assert len(play.waves()) == 1
    play.cluster.forbidden = frozenset()
    play.play().check_complete()


def test_refused_probe_is_announced_and_retried():
    play = Play(cases=6, target="target: here")
    play.cluster.stack = STACK
    play.cluster.forbidden = frozenset({"create"})
    play.rounds(3)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    play.cluster.forbidden = frozenset()
    play.play().check_complete()


def test_failing_webhook_is_announced_as_a_refusal():
    play = Play(cases=6)
    words = 'Internal error occurred: failed calling webhook "policy.example.com": EOF'

    def fail(number, name):
        if name == "create_or_adopt":
            raise cluster_error(500, words)

    play.cluster.before = fail
    play.rounds(3)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert words in event["message"]
    play.cluster.before = lambda number, name: None
    play.play().check_complete()


def test_unchanged_state_is_announced_once():
    play = Play(cases=6)
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    play.cluster.told.clear()
    play.rounds(5)
    assert not play.cluster.told


@pytest.mark.thorough
def test_invalid_config_map_is_announced_and_affects_no_other():
    play = Play(cases=6)
    bad = config_map("other", "campaign: other\n", {"site": "cpu"}, DEPLOYMENT)
    play.cluster.apply(bad)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert "sources" in event["message"]


def test_error_in_one_campaign_ends_no_other(monkeypatch):
    play = Play(cases=6)
    other = copy.deepcopy(play.cluster.maps[MAP])
    name = config_map_name("broken")
    other["metadata"] |= {"name": name, "labels": {"opmeter.io/campaign": "broken"}}
    other["data"]["campaign.yaml"] = other["data"]["campaign.yaml"].replace("small", "broken")
    play.cluster.apply(other)

    def read(campaign, *more):
        assert campaign.name == "small"
        return read_state(campaign, *more)

    monkeypatch.setattr(current_plan.lifecycle, "read_state", read)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "InternalError"]
    assert "AssertionError" in event["message"]


def test_only_the_config_map_named_after_its_campaign_is_used():
    play = Play(cases=6)
    other = copy.deepcopy(play.cluster.maps[MAP])
    other["metadata"]["name"] = "the-other"
    other["data"]["image"] = "evil/collector:1"
    play.cluster.apply(other)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert missing(event["message"], ["'small'", MAP]) == []


def test_events_of_a_starting_pod_are_forwarded():
    play = Play(cases=24, site={"site.kueue_queue": "team"})
    play.reconcile()
    (job,) = play.cluster.worker_jobs()
    job["spec"]["suspend"] = False
    pod = play.cluster._pod(job["metadata"]["name"], job, 0)
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    play.cluster.running = [pod]
    words = 'MountVolume.SetUp failed for volume "store" : secret "opmeter-s3" not found'
    play.cluster.warnings[pod["metadata"]["name"]] = ["older", words]
    play.reconcile()
    play.reconcile(after_s=500.0)
    assert "NotStarting" not in play.cluster.reasons()
    play.reconcile(after_s=200.0)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "NotStarting"]
    assert words in event["message"] and "store_secret" in event["message"]


def test_the_annotations_are_those_of_the_manual():
    assert (PAUSED, ALLOW_MISSING) == ("opmeter.io/paused", "opmeter.io/allow-missing")
    assert COMPONENT == "app.kubernetes.io/component"
