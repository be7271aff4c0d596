"""The plans of a campaign among objects that do not belong to it."""

from dataclasses import replace

import pytest

from collector.model import keys
from collector.model.plan import plan_to_json
from collector.store.in_memory import MemoryStore
from jobs.planning.stored_plans import committed_shards, find_plans, plan_numbers
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

RECORDS = [add_record(1)]


@pytest.fixture
def store() -> MemoryStore:
    """A campaign of three plans."""
    store = MemoryStore()
    for number in (1, 2, 3):
        shard = MadeShard(f"shard-{number}", RECORDS, [answered(RECORDS, 1.0)])
        write_campaign(store, MadePlan([shard], number=number))
    return store


STRAYS = ["1.json~", ".DS_Store", "99999999.json", "0.json", "01.json", "x.json", "4.json.swp"]


@pytest.mark.parametrize("data", [b"", b"{}", b"mine"])
def test_strays_are_not_plans_and_occupy_no_number(store: MemoryStore, data: bytes) -> None:
    for name in STRAYS:
        store.put(keys.plans("made") + name, data)
    store.put(keys.plan("made", 7), store.get(keys.plan("made", 2)))  # a copy is not plan 7
    found = find_plans(store, "made")
    assert [plan.number for plan in found.plans] == [1, 2, 3]
    assert (found.damaged, found.last) == ((), 3)


def test_plan_after_a_missing_one_is_found_and_a_damaged_one_reported(
    store: MemoryStore,
) -> None:
    store.delete(keys.plan("made", 2))
    assert plan_numbers(store, "made") == [1, 3]
    store.put(keys.plan("made", 1), b"")
    found = find_plans(store, "made")
    assert [plan.number for plan in found.plans] == [3] and found.last == 3
    assert [damage.plan for damage in found.damaged] == [1]
    forged = replace(found.plans[0], campaign="other")
    store.put(keys.plan("made", 3), plan_to_json(forged))
    assert plan_numbers(store, "made") == [1]


def test_strays_are_not_committed_shards(store: MemoryStore) -> None:
    expected = committed_shards(store, "made")
    assert expected == {"shard-1", "shard-2", "shard-3"}
    for name in (".DS_Store", "shard-1.json~", "x/y.json", "shard-4.csv"):
        store.put(keys.committed_prefix("made") + name, b"")
    assert committed_shards(store, "made") == expected
