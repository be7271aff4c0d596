"""Reading a database without its whole state: the same results, from fewer files."""

import io
import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.codec.errors import DamagedObject
from collector.database.commits import Commit, find_head
from collector.database.head_content import HeadContent, HeldShards
from collector.database.intervals import intervals_of
from collector.database.merge import CREATE, merge_plans
from collector.database.query import best_rows, case_results, held_shards
from collector.database.snapshot import interval_rows, load_state
from collector.model import keys
from collector.model.measurement import CACHES, Outcome
from collector.model.record import CaseRecord
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.forging import shown_key
from tests.unit.collector.database.wrapped_stores import CountingStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 9)]


def merged(store: Store, made: MadePlan) -> Commit:
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test", supersede_stack=True)
    head = find_head(store)
    assert head is not None
    return head


def random_plan(
    chance: random.Random, number: int, records: Sequence[CaseRecord] = RECORDS
) -> MadePlan:
    """Return a plan with some results of some cases, in any cache state, sometimes on another
    stack."""
    chosen = chance.sample(records, 4)
    session = {
        record.case_id: chance.choice(
            [
                Tried(float(chance.randint(1, 9)), cache=chance.choice(CACHES)),
                Tried(outcome=Outcome.OOM),
            ]
        )
        for record in chosen
    }
    stack = chance.choice([STACK, STACK, replace(STACK, driver="25.1")])
    shard = MadeShard(f"shard-{number}", chosen, [session])
    campaign = chance.choice(["made", "other"])
    return MadePlan([shard], campaign, number, number - 1, stack=stack)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_results_read_from_the_head_equal_those_of_the_whole_state(seed: int) -> None:
    chance = random.Random(seed)
    store = MemoryStore()
    for number in range(1, 5):
        head = merged(store, random_plan(chance, number))
    state, content = load_state(store, head), HeadContent.of(store, head)
    expected = {record.case_id for record in chance.sample(RECORDS, 6)}
    for cache in (None, *CACHES):
        whole = case_results(state, PATH, cache=cache)
        found = content.case_results(PATH, expected, cache=cache)
        assert found == {case: whole[case] for case in expected & set(whole)}
    assert content.shows(STACK) == state.shows(STACK)
    pairs = held_shards(state)
    for campaign in ("made", "other", "nobody"):
        own = {shard for name, shard in pairs if name == campaign}
        assert HeldShards(store, campaign).at(head) == own


def test_empty_database_has_no_results() -> None:
    store = MemoryStore()
    content = HeadContent.of(store, None)
    assert content.versions == {} and not content.shows(STACK)
    assert content.case_results(PATH, [RECORDS[0].case_id]) == {}
    assert HeldShards(store, "made").at(None) == frozenset()


@pytest.mark.thorough
def test_held_shards_read_no_measurements() -> None:
    store = CountingStore(MemoryStore())
    shards = [MadeShard(f"s{n}", [r], [answered([r], 5.0)]) for n, r in enumerate(RECORDS)]
    head = merged(store, MadePlan(shards[:4]))
    held = HeldShards(store, "made")
    store.calls.clear()
    assert held.at(head) == held.at(head) == {"s0", "s1", "s2", "s3"}
    head = merged(store, MadePlan(shards[4:], number=2, head_commit=1, attempt="b"))
    store.calls.clear()
    assert len(held.at(head)) == 8
    read = [key for verb, key in store.calls if verb == "get"]
    assert sorted(key.split("/")[1] for key in read) == ["snapshots", "versions"]


def test_campaign_without_merges_is_found_from_the_manifest_alone() -> None:
    store = CountingStore(MemoryStore())
    head = merged(store, MadePlan([MadeShard("s", RECORDS[:1], [answered(RECORDS[:1], 5.0)])]))
    store.calls.clear()
    assert HeldShards(store, "other").at(head) == frozenset()
    assert [key for _, key in store.calls] == [keys.snapshot_manifest(head.snapshot)]


def test_changed_file_is_refused() -> None:
    store = MemoryStore()
    head = merged(store, MadePlan([MadeShard("s", RECORDS[:1], [answered(RECORDS[:1], 5.0)])]))
    [key] = [info.key for info in store.list(f"{keys.MEASUREMENTS}device=")]
    store.put(key, b"another")
    with pytest.raises(DamagedObject, match=naming(f"{key}:", "sha256")):
        HeadContent.of(store, head).case_results(PATH, [RECORDS[0].case_id])


def test_intervals_of_the_head_are_those_of_the_state():
    store, records, twice = MemoryStore(), RECORDS[:5], RECORDS[:3]
    merged(store, MadePlan([MadeShard("s1", records, [answered(records, 7.0)])]))
    head = merged(store, MadePlan([MadeShard("s2", twice, [answered(twice, 7.1)])], number=2))
    content, state = HeadContent.of(store, head), load_state(store, head)
    best = best_rows(state, PATH)
    measured = zip(best["case"].to_pylist(), best["measurement"].to_pylist(), strict=True)
    of = intervals_of(state)[PATH].of
    known = {case: of[measurement] for case, measurement in measured}
    found = content.intervals(PATH, known)
    assert found == known
    assert {case: one.sessions for case, one in found.items()} == {
        record.case_id: 2 if record in twice else 1 for record in records
    }
    one = RECORDS[0].case_id
    assert content.intervals(PATH, [one, RECORDS[7].case_id]) == {one: known[one]}
    assert content.intervals("elsewhere", known) == {}
    assert HeadContent.of(store, None).intervals(PATH, known) == {}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("mean_us", [0.0]),
        ("stack_high_us", [-1.0]),
        ("stack_high_us", [float("inf")]),
        ("sessions", [-1]),
        ("sessions", pa.array([None], pa.int64())),
        ("stack_low_us", ["low"]),
        ("stack_low_us", None),
    ],
)
def test_table_of_impossible_intervals_is_damage(column, values):
    store = MemoryStore()
    head = merged(store, MadePlan([MadeShard("s1", RECORDS[:1], [answered(RECORDS[:1], 7.0)])]))
    key = shown_key(store, head)
    table = pq.read_table(io.BytesIO(store.get(key)))
    if values is None:
        table = table.drop_columns([column])
    else:
        table = table.set_column(table.column_names.index(column), column, pa.array(values))
    out = io.BytesIO()
    pq.write_table(table, out)
    with pytest.raises(DamagedObject, match=naming(f"{key}:")):
        list(interval_rows(out.getvalue(), PATH, key=key))
    store.put(key, out.getvalue())
    with pytest.raises(DamagedObject, match=naming(f"{key}:", "sha256")):
        HeadContent.of(store, head).intervals(PATH, [RECORDS[0].case_id])
