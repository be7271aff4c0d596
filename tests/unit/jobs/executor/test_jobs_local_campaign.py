"""A run continues automatically after sessions with suspect canaries, once."""

from dataclasses import dataclass, replace

import pytest

from collector.model import keys
from collector.model.measurement import CanaryReading
from collector.model.plan import CANARY_PLACES, read_shard
from jobs.planning.stored_plans import read_plans
from tests.unit.collector.database.campaign_maker import MadePlan, MadeShard, Tried, commit_shard
from tests.unit.jobs.planning.test_jobs_damage import Here
from tests.unit.jobs.planning.test_jobs_next_plan import HEADER, ROW, TARGET
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

LONG = (
    f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    "quality: {repeat_share: 0}\nmeasure: {budget_s: 60, repeats: [3, 10000000]}\n"
    "shards: {target_s: 50, session_s: 240}\n"
)


@dataclass
class Slowed(Here):
    """The first shard of plan 1 is measured on a device that takes twice as long."""

    factor: float = 2.0

    def measured(self, plan, shards=slice(None)):
        for at, shard in enumerate(plan.shards[shards]):
            table = read_shard(self.store.get(keys.shard("made", shard.shard_id)))
            factor = self.factor if (plan.number, at) == (1, 0) else 1 + 0.0001 * at
            canaries = tuple(
                CanaryReading("Add 4096,4096", place, when, 90.0 * factor, 0.01, 8)
                for when, place in enumerate(CANARY_PLACES)
            )
            session = {
                case.record.case_id: Tried(7.0 * factor, canaries=canaries) for case in table
            }
            made = MadeShard(shard.shard_id, [case.record for case in table], [session])
            reported = MadePlan([made], number=plan.number, stack=plan.stack)
            reported = replace(reported, head_commit=plan.head_commit, node="here")
            commit_shard(self.store, reported, plan, made)


@pytest.fixture
def slowed(tmp_path, capsys, monkeypatch):
    def of(factor):
        here = Slowed(tmp_path, capsys, monkeypatch, factor)
        here.path.write_text(LONG)
        rows = [ROW.replace("1,64", f"{n},64") for n in range(1, 9)]
        (tmp_path / "tree" / "Add.csv").write_text(HEADER + "".join(rows))
        return here

    return of


@pytest.mark.thorough
def test_cases_of_a_slow_session_are_measured_again_in_the_same_run(slowed):
    here = slowed(2.0)
    code, message = here.run()
    first, second = read_plans(here.store, "made")
    assert code == 0 and len(first.shards) > 3 and second.round == "2d"
    assert second.forecast.doubtful > 0 and {s.not_on for s in second.shards} == {"here/"}
    assert any(numbers(line) == ["2", "1"] for line in message if "plan" in line)
    assert any(line.split()[:1] == ["again"] for line in message)
    assert numbers(here.run()[1][-1]) == ["2"]
    assert len(read_plans(here.store, "made")) == 2


@pytest.mark.thorough
def test_run_of_intact_sessions_ends_with_its_plan(slowed):
    here = slowed(1.0)
    here.run()
    assert [plan.round for plan in read_plans(here.store, "made")] == [""]


@pytest.mark.thorough
def test_run_uses_its_files_as_they_were_at_the_start(slowed):
    """Also after its first plan: large profiles are read once."""
    here = slowed(2.0)
    measure = here.measured

    def measured(plan, shards=slice(None)):
        (here.folder / "tree" / "Add.csv").write_text("torn")
        measure(plan, shards)

    here.measured = measured
    code, _ = here.run()
    assert code == 0 and [plan.round for plan in read_plans(here.store, "made")] == ["", "2d"]
