"""The reads of one reconciliation from the store: of the database, only enough to show whether a
plan is merged."""

from pathlib import Path

import pytest

from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.model import keys
from collector.model.plan import Plan
from collector.model.record import CaseRecord
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.campaign.target import resolve_stack_of
from jobs.controller.observation import observe
from jobs.controller.remembered import KnownPlan, Memory
from jobs.decide.observed import Observed
from jobs.objects.applied_campaign import applied_from, config_map
from jobs.objects.deployment import Deployment
from jobs.objects.job_manifest import worker_job
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning.lifecycle import NewPlan, decide, make_next, read_state
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.wrapped_stores import CountingStore
from tests.unit.jobs.fake_cluster import FakeCluster

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 4)]
TEXT = "campaign: made\nsources: [{bundled: quickstart}]\nbackend: cpu\ntarget: here\n"


def shard(name: str, record: CaseRecord, *, done: bool = True) -> MadeShard:
    return MadeShard(name, [record], [answered([record], 5.0)], is_committed=done)


class Looks:
    """One controller that reconciles a campaign whose database has a head."""

    def __init__(self, shards: list[MadeShard], **notes: str):
        self.store = CountingStore(MemoryStore())
        self.made = MadePlan(shards)
        self.plan: Plan = write_campaign(self.store, self.made)
        self.memory = Memory()
        self.cluster = FakeCluster(self.store)
        deployment = Deployment("bench", "here/collector:1", "here/controller:1", "memory:")
        applied = config_map("made", TEXT, {"site": "cpu"}, deployment)
        applied["metadata"]["annotations"] = notes
        self.applied = applied_from(applied)

    def merge(self) -> None:
        merge_plans(self.store, [self.made.name], guard=CREATE, author="test", allow_missing=True)
        assert find_head(self.store) is not None
        self.store.calls.clear()

    def reconcile(self) -> bool:
        return self.observe().merged

    def observe(self) -> Observed:
        known = KnownPlan(self.plan)
        return observe(self.cluster, self.applied, known, self.store, self.memory)

    def read(self, beginning: str = "") -> list[str]:
        """The objects read of the snapshots and measurements of the database."""
        read = [key for verb, key in self.store.calls if verb == "get"]
        kinds = ("measurements", "shown", "snapshots", "versions")
        content = [key for key in read if key.startswith(tuple(f"db/{kind}/" for kind in kinds))]
        return [key for key in content if key.startswith(beginning)]


def test_merged_state_of_a_plan_is_read_from_manifests_alone() -> None:
    simulation = Looks([shard("a", RECORDS[0]), shard("b", RECORDS[1])])
    assert not simulation.reconcile()
    simulation.merge()
    assert simulation.reconcile() and simulation.reconcile()
    assert simulation.read() and all(key.endswith("/manifest.json") for key in simulation.read())


def test_further_commits_of_a_partly_merged_plan_cause_no_reads() -> None:
    late = shard("late", RECORDS[2], done=False)
    simulation = Looks([shard("a", RECORDS[0]), late], **{"opmeter.io/allow-missing": "true"})
    simulation.merge()
    assert simulation.reconcile()
    simulation.store.put("campaigns/made/committed/late.json", b"{}")
    simulation.store.calls.clear()
    assert not simulation.reconcile()
    assert simulation.read() == []


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["missing-only", "precision"])
def test_planning_reads_only_the_tables_of_its_cases(tmp_path: Path, update: str) -> None:
    simulation = Looks([shard("a", RECORDS[0])])
    simulation.merge()
    text = f"{TEXT}update: {update}\n"
    if update == "precision":
        text += "quality: {budget_device_h: 1}\n"
    campaign = campaign_from_text(text, path="c.yaml", base=tmp_path)
    stack = resolve_stack_of(campaign, lambda: STACK)
    state = read_state(campaign, simulation.store, stack)
    decide(state, RunOptions())
    make_next(state, NewPlan(2, ()), RunOptions())
    assert not [key for key in simulation.read() if key.endswith((".csv", "profiles.parquet"))]
    assert len(simulation.read("db/shown/")) == (1 if update == "precision" else 0)


def test_commits_of_a_succeeded_index_may_be_listed_late() -> None:
    now = [100.0]
    simulation = Looks([shard("a", RECORDS[0]), shard("b", RECORDS[1], done=False)])
    simulation.memory = Memory(lambda: now[0])
    wave = Wave("made", 1, simulation.plan.plan_hash, 0, (("a",), ("b",)))
    simulation.store.put(keys.wave("made", wave.wave_hash), wave_to_json(wave))
    job = worker_job(
        wave, simulation.plan, simulation.applied.site, simulation.applied.deployment, cap=1
    )
    job["metadata"]["uid"] = "u"
    job["status"] = {"completedIndexes": "0-1", "succeeded": 2}
    simulation.cluster.live[wave.job_name] = job
    assert simulation.observe().settling == {(wave.job_name, 1)}
    now[0] += 60
    assert not simulation.observe().settling


def test_long_pod_list_is_read_less_often_unless_a_pod_failed() -> None:
    now, listed = [100.0], []

    def request() -> int:
        now[0] += 1.0
        listed.append(now[0])
        return len(listed)

    pods = Memory(lambda: now[0]).workers
    assert [pods.get(request, about="well") for _ in range(5)] == [1] * 5
    assert pods.get(request, about="failed") == 2
    now[0] += 45
    assert pods.get(request, about="failed") == 3
