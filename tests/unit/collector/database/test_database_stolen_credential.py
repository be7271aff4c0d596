"""The rights of a worker's credential in the database (docs/reference/rights.md): it writes below
`attempts/`, and creates objects in `committed/`."""

from dataclasses import replace

import pytest

from collector.database.commits import find_head
from collector.database.merge import CREATE, MergeResult, merge_plans
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.model import keys
from collector.model.plan import Plan
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    commit_shard,
    write_campaign,
)

pytestmark = pytest.mark.fast

FIRST, SECOND = add_record(1), add_record(2)
TRUE_US, FORGED_US = 5.0, 1.0
SHARDS = (
    MadeShard("first", [FIRST], [answered([FIRST], TRUE_US)]),
    MadeShard("second", [SECOND], [answered([SECOND], FORGED_US)], is_committed=False),
)
MADE = MadePlan(SHARDS)
PART = keys.part(MADE.campaign, "first", MADE.attempt, 0)


def merged(store: MemoryStore) -> MergeResult:
    return merge_plans(store, [MADE.name], guard=CREATE, author="test", allow_missing=True)


def shown(store: MemoryStore) -> dict[str, float | None]:
    results = case_results(load_state(store, find_head(store)), PATH)
    return {case: found.mean_us for case, found in results.items()}


def forge(store: MemoryStore, plan: Plan, made: MadePlan = MADE) -> None:
    """Commit the open shard, with unmeasured rows."""
    commit_shard(store, replace(made, attempt="forged"), plan, SHARDS[1])


def rewrite(store: MemoryStore, key: str) -> None:
    forged = store.get(key).replace(str(TRUE_US).encode(), str(FORGED_US).encode())
    assert forged != store.get(key)
    store.put(key, forged)


def test_stolen_credential_can_commit_forged_rows_of_open_shards_only() -> None:
    store = MemoryStore()
    plan = write_campaign(store, MADE)
    forge(store, plan)
    assert merged(store).damaged == ()  # the forgery cannot be detected
    assert shown(store) == {FIRST.case_id: TRUE_US, SECOND.case_id: FORGED_US}
    other = replace(MADE, stack=replace(MADE.stack, details=(("flags", "avx512f"),)))
    store = MemoryStore()
    forge(store, write_campaign(store, MADE), other)
    assert [damage.shard for damage in merged(store).damaged] == ["second"]
    assert shown(store) == {FIRST.case_id: TRUE_US}


def test_part_changed_by_a_stolen_credential_after_the_commit_is_damage() -> None:
    store = MemoryStore()
    write_campaign(store, MADE)
    rewrite(store, PART)
    result = merged(store)
    assert [(damage.shard, damage.key) for damage in result.damaged] == [("first", PART)]
    assert FORGED_US not in shown(store).values()


def test_published_rows_are_unchanged_and_verify_reports_the_changed_part() -> None:
    store = MemoryStore()
    write_campaign(store, MADE)
    merged(store)
    rewrite(store, PART)
    merged(store)
    assert shown(store) == {FIRST.case_id: TRUE_US}
    (problem, *_) = find_problems(store)
    assert problem.text.startswith(f"{PART}: ")
