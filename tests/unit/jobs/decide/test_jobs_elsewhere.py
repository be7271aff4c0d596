"""Cases of a suspect session go to another node, where there is one, and never wait without end."""

from dataclasses import replace

import pytest

from collector.model.plan import PlannedShard
from jobs.decide.actions import Finish, LaunchWave, Replan
from jobs.decide.decision import decide
from jobs.decide.observed import Desired
from jobs.objects.job_manifest import worker_job
from jobs.objects.site import load_site
from jobs.objects.waves import NodeFailure, NodeFailures
from tests.unit.jobs.controller.simulated_campaign import DEPLOYMENT
from tests.unit.jobs.decide.test_jobs_decision import SimulatedCluster
from tests.unit.jobs.plans import plan_of
from tests.unit.jobs.printed import missing

pytestmark = pytest.mark.fast


def expected(*not_on, workers=4, predicted_s=10.0, **more):
    shards = tuple(
        PlannedShard(f"s{at}", 1, predicted_s, "0" * 64, not_on=f"{node}/d0" if node else "")
        for at, node in enumerate(not_on)
    )
    return Desired(plan_of(shards), workers, per_index=1, **more)


class Cluster(SimulatedCluster):
    """Knows where each shard was measured; `others` are nodes whose devices another campaign
    holds."""

    def __init__(self, *given, others=(), **more):
        super().__init__(*given, **more)
        self.ran, self.others = {}, set(others)

    def observe(self):
        observed = super().observe()
        nodes = tuple(
            replace(node, free_devices=0) if node.name in self.others else node
            for node in observed.nodes
        )
        return replace(observed, nodes=nodes)

    def _ended(self, pod):
        before = set(self.committed)
        ended = super()._ended(pod)
        self.ran.update(dict.fromkeys(set(self.committed) - before, pod.node))
        return ended

    def reported(self):
        return [message for reason, message in self.announced if reason == "SameNode"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kueue", [False, True])
def test_each_shard_runs_on_another_node_than_before(seed, kueue):
    kept = ["n1", "n2", "n1", "", "n2", "n1"]
    cluster = Cluster(expected(*kept, kueue=kueue), seed=seed).run()
    assert all(cluster.ran[f"s{at}"] != node for at, node in enumerate(kept))
    assert cluster.reported() == [] and len(cluster.ran) == len(kept)


def test_shards_that_avoid_the_same_node_share_a_job():
    cluster = Cluster(expected("n1", "n2", "n1"))
    cluster.run()
    first = min(cluster.waves.values(), key=lambda wave: wave.serial)
    assert first.shards == {"s0", "s2"} and first.avoid == ("n1",)


def test_job_of_a_shard_excludes_its_avoided_node():
    cluster = Cluster(expected("n1"))
    cluster.reconcile()
    (wave,) = cluster.waves.values()
    job = worker_job(wave, cluster.expected.plan, load_site("cpu"), DEPLOYMENT, cap=1)
    rules = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]
    }


def test_single_node_repeats_its_own_shards_with_an_event():
    cluster = Cluster(expected("n1", "n1"), nodes=("n1",)).run()
    assert set(cluster.ran.values()) == {"n1"}
    assert missing(cluster.reported()[0], ["2 shards", "n1"]) == []


def test_occupied_node_does_not_count_as_an_alternative():
    cluster = Cluster(expected("n1"), others=["n2"]).run()
    assert cluster.ran == {"s0": "n1"} and len(cluster.reported()) >= 1


def test_job_without_remaining_nodes_is_replaced():
    cluster = Cluster(expected("n1"))
    cluster.reconcile()
    assert [wave.avoid for wave in cluster.waves.values()] == [("n1",)]
    cluster.nodes["n2"] = False
    cluster.run()
    assert cluster.ran == {"s0": "n1"} and len(cluster.waves) == 2


def test_quarantine_of_the_avoided_node_makes_no_further_job():
    cluster = Cluster(expected("n1"))
    cluster.node_failures = NodeFailures(
        frozenset({NodeFailure("n1", "x"), NodeFailure("n1", "y")})
    )
    cluster.reconcile()
    cluster.nodes["n2"] = False
    for _ in range(10):
        cluster.reconcile()
        cluster.step()
    assert len(cluster.waves) == 1 and len(cluster.jobs) == 1
    cluster.nodes["n2"] = True
    assert cluster.run().ran == {"s0": "n2"}


def test_wave_without_a_job_and_without_nodes_is_replaced():
    """A controller that was killed between the wave and its Job has left it."""
    cluster = Cluster(expected("n1"))
    cluster.reconcile()
    cluster.jobs.clear()
    cluster.nodes["n2"] = False
    cluster.run()
    assert cluster.ran == {"s0": "n1"} and len(cluster.waves) == 2


def test_no_node_is_avoided_without_a_node_list():
    plan = expected("n1")
    (launch, *_) = [
        one
        for one in decide(plan, replace(Cluster(plan).observe(), nodes=()))
        if isinstance(one, LaunchWave)
    ]
    assert launch.wave.avoid == ()


@pytest.mark.parametrize(("predicted_s", "requests"), [(59.0, False), (60.0, True)])
def test_plan_with_canaries_is_replanned_once_before_the_end(predicted_s, requests):
    cluster = Cluster(expected("", predicted_s=predicted_s))
    ends = []
    while not cluster.finished:
        ends += [one for one in cluster.reconcile() if isinstance(one, Finish | Replan)]
        cluster.step()
    assert ends == [Replan(), Finish()][not requests :]
