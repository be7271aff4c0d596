"""Values exactly at the limit of a rule of the database."""

import pytest

from collector import environment
from collector.database.merge import CREATE, merge_plans
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.test_database_envelope import found, record

pytestmark = pytest.mark.fast


def out_of_order(cases: int, above: int) -> list[tuple[str, int, int]]:
    """Return the kernel types with too many durations above those of larger cases, if `above` of
    this many cases, the smallest, take ten times as long as all others."""
    timed = [(record(n, 8), 100.0 if n <= above else 10.0) for n in range(1, cases + 1)]
    return [(one.kernel_type, one.above, one.cases) for one in found(timed).out_of_order]


def test_kernel_is_reported_above_a_twentieth_of_forty_cases():
    assert out_of_order(40, 2) == []
    assert out_of_order(40, 3) == [("Add", 3, 40)]
    assert out_of_order(39, 3) == []


class LosingStore(MemoryStore):
    """Another merge, of the next plan, takes the number of a commit first."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[int] = []

    def create(self, key: str, data: bytes) -> None:
        if self.others and "/commits/" in key:
            number, rest, self.others = self.others[0], self.others[1:], []
            merge_plans(self, [("made", number)], guard=CREATE, author="other")
            self.others = rest
        super().create(key, data)


@pytest.mark.thorough
def test_merge_that_loses_the_commit_race_doubles_its_wait(monkeypatch):
    monkeypatch.setattr(environment, "uniform", lambda low, high: high)
    store, pauses = LosingStore(), []
    add = record_of_shapes("Add", "8,8;8,8", "8,8")
    for number in (1, 2, 3, 4):
        shard = MadeShard(f"s{number}", [add], [{add.case_id: Tried(3.0)}])
        write_campaign(store, MadePlan([shard], number=number))
    store.others = [2, 3, 4]
    merge_plans(store, [("made", 1)], guard=CREATE, author="test", sleep=pauses.append)
    assert pauses == pytest.approx([0.075, 0.15, 0.3])
