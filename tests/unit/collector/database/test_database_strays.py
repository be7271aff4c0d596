"""Foreign objects are distinguished from objects that the database lost, and harm nothing."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.database.commits import find_head, read_commit
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_problems, find_strays
from collector.model import keys
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 3)]


def publish(store: Store, number: int) -> None:
    shard = MadeShard(f"shard-{number}", RECORDS, [answered(RECORDS, 10.0)])
    made = MadePlan([shard], number=number, head_commit=number - 1, op_mapping="a: 1\n")
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    publish(store, 1)
    return store


OURS = [
    *(
        keys.HEAD,
        keys.commit(1),
        keys.commit(123_456_789),
        keys.measurements(PATH, "00000001-0123abcd"),
        keys.shown(PATH, "00000001-0123abcd"),
    ),
    *(spell("00000001-0123abcd", PATH) for spell in (keys.version_manifest, keys.index)),
    *(spell("00000001-0123abcd", PATH) for spell in (keys.profiles, keys.pairs_key)),
    *(keys.snapshot_manifest("00000001-0123abcd"), keys.nodes("a"), keys.VERIFIED_MARK),
    *(keys.source("a", "0" * 64), keys.plan("a", 10), keys.shard("a", "s.1"), keys.wave("a", "0f")),
    *(keys.raw_summary("a", "s", "t", 0), keys.raw_summary("a", "s", "t", 12, "MemoryUB")),
    *(keys.raw_journal("a", "s", "t", 0), keys.raw_journal("a", "s", "t", 1, "L2")),
    *(keys.part("a-b", "s", "t", 0), keys.part_entry("a", "s", "t", 0)),
    *(keys.session_cases("a", "s", "t", 3), keys.attempt_log("a", "s", "t")),
    *(keys.progress("a", "s", "t"), keys.attempt_manifest("a", "s", "t")),
    keys.committed("a", "s"),
]


@pytest.mark.parametrize("key", OURS)
def test_every_written_key_is_recognised(key: str) -> None:
    assert keys.is_ours(key)
    for stray in (f"{key}~", f"{key}.bak", f"{key}/x", f"x/{key}", f"{key}\n"):
        assert not keys.is_ours(stray) or "/snapshots/" in stray


STRAYS = [
    *("db/.DS_Store", "db/commits/.DS_Store", "db/commits/00000001.json~", "db/commits/1.json"),
    *("db/commits/00000000.json", "db/commits/99999999.json~", "db/HEAD.json.swp"),
    *("campaigns/.DS_Store", "campaigns/made/.DS_Store", "campaigns/made/plans/1.json~"),
    *("campaigns/made/plans/01.json", "campaigns/made/plans/0.json", "campaigns/made/plans/x.json"),
    *("campaigns/made/committed/.DS_Store", "campaigns/made/committed/shard-1.json~"),
    *("campaigns/made/attempts/.DS_Store", "campaigns/made/attempts/shard-1/Thumbs.db"),
    *("campaigns/made/attempts/shard-1/attempt-1/part-0.csv~", "campaigns/Made!/plans/1.json"),
    *("campaigns/made/attempts/shard-1/attempt-1/part-00.csv", "campaigns/made/nodes.json~"),
    "campaigns/made/waves/.DS_Store",
]


@pytest.mark.thorough
def test_strays_are_listed_and_change_nothing(store: MemoryStore) -> None:
    assert find_strays(store) == []
    for key in STRAYS:
        store.put(key, b"mine")
    assert {stray.key for stray in find_strays(store)} == set(STRAYS)
    assert find_problems(store) == []
    publish(store, 2)
    assert find_head(store) == read_commit(store, 2)
    assert find_problems(store) == [] and {stray.key for stray in find_strays(store)} == set(STRAYS)


def test_object_that_no_version_names_is_listed(store: MemoryStore) -> None:
    kept = {info.key: store.get(info.key) for info in store.list("db/")}
    publish(store, 2)
    head = read_commit(store, 2)
    store.put(keys.snapshot(head.snapshot) + "notes.csv", b"mine")
    (stray,) = find_strays(store)
    assert stray.key == keys.snapshot(head.snapshot) + "notes.csv" and stray.reason
    store.delete(keys.snapshot(head.snapshot) + "notes.csv")
    for key in (keys.commit(2), keys.HEAD):  # as if the merge had been killed before its commit
        store.delete(key)
    left = {i.key for i in store.list("db/") if "_delta_log" not in i.key} - kept.keys()
    place = keys.snapshot(head.snapshot)
    left = {place if key.startswith(place) else key for key in left}
    assert {stray.key for stray in find_strays(store)} == left and len(left) > 5


def test_empty_objects_are_listed(store: MemoryStore) -> None:
    store.put(keys.nodes("made"), b"")
    (stray,) = find_strays(store)
    assert stray.key == keys.nodes("made") and names(stray.reason, "empty")


def test_unreadable_version_disables_the_search_for_unnamed_objects(store: MemoryStore) -> None:
    publish(store, 2)
    store.delete(keys.snapshot_manifest(read_commit(store, 1).snapshot))
    assert find_strays(store) == []


@given(st.text(max_size=40), st.integers(0, 10**12))
def test_number_is_parsed_only_from_a_key_that_it_produces(noise: str, number: int) -> None:
    assert keys.number_in_key(keys.commit(number), keys.commit) == number
    for key in (noise, keys.COMMITS + noise, f"{keys.COMMITS}{noise}.json"):
        found = keys.number_in_key(key, keys.commit)
        assert found is None or keys.commit(found) == key
        of_path = partial(keys.measurements, PATH)
        name = keys.name_of(key, of_path)
        assert name is None or of_path(name) == key


@pytest.mark.parametrize("damage", [b"{", b"[" * 100_000, None])
def test_damaged_head_hint_is_listed_until_it_is_rewritten(
    store: MemoryStore, damage: bytes | None
) -> None:
    whole = store.get(keys.HEAD)
    turned = whole.replace(b'"number":', b'"numbes":')
    store.put(keys.HEAD, turned if damage is None else damage)
    assert [stray.key for stray in find_strays(store)] == [keys.HEAD]
    assert find_problems(store) == []
    store.put(keys.HEAD, whole)
    assert find_strays(store) == []
