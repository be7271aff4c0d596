"""Inputs exactly at the bound of a rule of the controller."""

from dataclasses import replace

import pytest

from collector.model.plan import PlannedShard
from jobs.decide.observed import Desired, Observed
from jobs.decide.pod_problems import STUCK_S
from jobs.decide.suspensions import suspension
from jobs.decide.wave_choice import reserved
from jobs.objects.waves import Wave
from tests.unit.jobs.decide.test_jobs_rule_examples import job_of, nodes_of, pod_of
from tests.unit.jobs.plans import plan_of

pytestmark = pytest.mark.fast

GANG = Wave("c", 1, "h", 0, (("g0",), ("g0",)), pods=2)


def test_pod_of_a_gang_counts_as_absent_after_more_than_ten_minutes():
    job = job_of(GANG, gang=True)
    late = pod_of(job, 1, "", "Pending", unschedulable="0/2 nodes", in_state_s=STUCK_S)
    assert suspension(job, GANG, [pod_of(job, 0), late], avoid=()) is None
    found = suspension(job, GANG, [pod_of(job, 0), replace(late, in_state_s=STUCK_S + 1)], ())
    assert found is not None and found.reason == "GangIncomplete"


@pytest.mark.parametrize(("committed", "pods"), [((), 0), (("g0",), 2)])
def test_nodes_of_a_committed_gang_are_available_to_the_next(committed, pods):
    shards = [PlannedShard(f"g{i}", 1, 10.0, "0" * 64, ranks=4) for i in range(2)]
    desired = Desired(plan_of(shards), 4, per_index=1, wide={"g0": 2, "g1": 2})
    job = job_of(GANG, gang=True)
    at_work = (pod_of(job, 0, "n1"), pod_of(job, 1, "n2"))
    seen = Observed(frozenset(committed), (GANG,), (job,), at_work, nodes_of("n1", "n2"))
    assert reserved(desired, seen, ["g1"], 2, avoid=()) == pods
