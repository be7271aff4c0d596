"""Unreadable objects are reported in one line, and block nothing else."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, OpmeterError
from collector.database.commits import find_head
from collector.database.merge import CREATE, MergeResult, merge_plans
from collector.database.plans import Damage
from collector.database.query import held_shards
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.verify import find_problems
from collector.database.view import render
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
from tests.unit.collector.database.wrapped_stores import CountingStore
from tests.unit.collector.naming import names, naming

RECORDS = [add_record(rows) for rows in range(1, 5)]
PART = keys.part("made", "bad", "attempt-1", 0)
MANIFEST = keys.attempt_manifest("made", "bad", "attempt-1")
COMMITTED = keys.committed("made", "bad")
TABLE = keys.shard("made", "bad")


def shard(name: str, *records: int, is_committed: bool = True) -> MadeShard:
    chosen = [RECORDS[at] for at in records]
    return MadeShard(name, chosen, [answered(chosen, 10.0)], is_committed=is_committed)


TWO_SHARDS = MadePlan([shard("good", 0, 1), shard("bad", 2, 3)])


def publish(store: Store, *numbers: int, **options: object) -> MergeResult:
    names = [("made", number) for number in numbers]
    return merge_plans(store, names, guard=CREATE, author="test", **options)  # type: ignore[arg-type]


def published(store: Store) -> frozenset[str]:
    return frozenset(name for _, name in held_shards(load_state(store, find_head(store))))


@pytest.mark.parametrize("key", [PART, MANIFEST, COMMITTED, TABLE])
@pytest.mark.parametrize("harm", ["bytes", "nothing", "deep", "another"])
def test_damaged_shard_is_reported_and_all_others_are_published(key: str, harm: str) -> None:
    store = MemoryStore()
    write_campaign(store, TWO_SHARDS)
    other = key.replace("bad", "good")
    harmed = {
        "bytes": b"\xff\xfe\x00" + store.get(key)[3:],
        "nothing": b"",
        "deep": b"[" * 100_000,
        "another": store.get(other),
    }
    store.put(key, harmed[harm])
    result = publish(store, 1)
    assert result.commit is not None and published(store) == {"good"}
    [damage] = result.damaged
    assert (damage.campaign, damage.plan, damage.shard) == ("made", 1, "bad")
    assert "campaigns/made/" in damage.reason and "\n" not in str(damage)
    assert result.missing == ()
    assert find_problems(store) == []
    rows = render(load_state(store, result.commit))[f"{PATH}/Add.csv"].rows
    assert rows == (2 if key == TABLE else 4)  # the cases of a readable table have a row


def slip(text: bytes) -> bytes:
    """Return a hash with another first digit."""
    return (b"1" if text[:1] == b"0" else b"0") + text[1:]


@pytest.mark.parametrize(
    ("named", "by", "edit"),
    [
        (MANIFEST, COMMITTED, slip),
        (PART, MANIFEST, slip),
        (TABLE, keys.plan("made", 1), slip),
        (MANIFEST, COMMITTED, lambda text: text[:-1] + b"O"),
        (MANIFEST, COMMITTED, lambda text: text[:-1]),
    ],
)
def test_changed_one_of_an_object_and_its_hash_is_reported(
    named: str, by: str, edit: Callable[[bytes], bytes]
) -> None:
    store = MemoryStore()
    write_campaign(store, MadePlan([shard("good", 0), shard("bad", 1)]))
    promised = sha256_hex(store.get(named)).encode()
    whole = {key: store.get(key) for key in (by, MANIFEST, COMMITTED)}
    store.put(by, store.get(by).replace(promised, edit(promised)))
    if by == MANIFEST:  # else its own hash is reported first
        resealed = sha256_hex(store.get(MANIFEST)).encode()
        old = sha256_hex(whole[MANIFEST]).encode()
        store.put(COMMITTED, store.get(COMMITTED).replace(old, resealed))
    [damage] = [damage for damage in publish(store, 1).damaged if damage.shard == "bad"]
    assert damage.reason.startswith(f"{by}: ") and names(damage.reason, named), damage
    for key, data in whole.items():
        store.put(key, data)
    store.put(named, store.get(named) + b" ")
    [damage] = [damage for damage in publish(store, 1).damaged if damage.shard == "bad"]
    assert damage.reason.startswith(f"{named}: ") and names(damage.reason, "sha256")


@pytest.mark.parametrize("key", [PART, MANIFEST, TABLE])
def test_missing_object_is_damage_and_missing_commit_leaves_its_shard_unmeasured(
    key: str,
) -> None:
    store = MemoryStore()
    write_campaign(store, MadePlan([shard("good", 0), shard("bad", 1)]))
    store.delete(key)
    [damage] = publish(store, 1).damaged
    assert damage.reason.startswith(f"{key}: ") and published(store) == {"good"}
    again = MemoryStore()
    write_campaign(again, MadePlan([shard("good", 0), shard("bad", 1)]))
    again.delete(COMMITTED)
    result = publish(again, 1)
    assert (result.damaged, result.missing) == ((), (("made", 1, "bad"),))


def test_measurements_of_a_plan_edited_later_are_damage() -> None:
    store = MemoryStore()
    write_campaign(store, MadePlan([shard("bad", 0)]))
    key = keys.plan("made", 1)
    store.put(key, store.get(key).replace(b"avx2", b"avx9"))
    result = publish(store, 1)
    assert result.commit is None
    reason = result.damaged[0].reason
    assert reason.startswith(f"{key}: ") and names(reason, MANIFEST)


def test_unreadable_plan_is_reported_and_the_others_are_merged() -> None:
    store = MemoryStore()
    for number in (1, 2, 3):
        write_campaign(store, MadePlan([shard(f"s{number}", number)], number=number))
    store.put(keys.plan("made", 1), b"{}")
    store.put(keys.plan("made", 2), store.get(keys.plan("made", 3)))
    result = publish(store, 1, 2, 3)
    assert published(store) == {"s3"}
    assert [(d.plan, d.shard) for d in result.damaged] == [(1, ""), (2, "")]
    assert "plans/1.json" in result.damaged[0].reason
    assert names(result.damaged[1].reason, "plans/2.json:", "plan 3", "made")
    with pytest.raises(BadInput, match=naming("'made'", "plan 7")):
        publish(store, 7)


def test_merged_shards_are_not_read_again_and_their_damage_stops_nothing() -> None:
    store = CountingStore(MemoryStore())
    write_campaign(store, MadePlan([shard("bad", 0), shard("late", 1, is_committed=False)]))
    publish(store, 1, allow_missing=True)
    for key in (PART, MANIFEST, COMMITTED, TABLE):
        store.put(key, b"rot")
    late = MadePlan([shard("bad", 0), shard("late", 1)])
    other = MemoryStore()
    write_campaign(other, late)
    for info in other.list("campaigns/"):
        if "late" in info.key:
            store.put(info.key, other.get(info.key))
    store.calls.clear()
    result = publish(store, 1)
    assert (result.damaged, result.missing, result.added_measurements) == ((), (), 1)
    assert published(store) == {"bad", "late"}
    assert not [key for _, key in store.calls if "/bad" in key]
    store.calls.clear()
    assert publish(store, 1).commit is None
    read = [key for verb, key in store.calls if verb == "get" and key.startswith("campaigns/")]
    assert read == [keys.plan("made", 1)]


def test_repaired_shard_is_published_by_the_next_merge() -> None:
    store = MemoryStore()
    write_campaign(store, MadePlan([shard("good", 0), shard("bad", 1)]))
    kept = store.get(PART)
    store.put(PART, kept[:-1])
    assert publish(store, 1).damaged and publish(store, 1).damaged
    store.put(PART, kept)
    result = publish(store, 1)
    assert result.damaged == () and published(store) == {"good", "bad"}
    whole = MemoryStore()
    write_campaign(whole, MadePlan([shard("good", 0), shard("bad", 1)]))
    clean = publish(whole, 1)
    assert result.head is not None and clean.head is not None
    assert result.head.content_hash == clean.head.content_hash


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_of_one_shard_leaves_the_others_published(data: st.DataObject) -> None:
    """For any or no damaged byte range of any object of one shard, the others equal those of an
    intact store."""
    store = MemoryStore()
    write_campaign(store, TWO_SHARDS)
    key = data.draw(st.sampled_from([PART, MANIFEST, COMMITTED, TABLE]))
    old = store.get(key)
    at = data.draw(st.integers(0, len(old) - 1))
    length = data.draw(st.integers(1, 40))
    new = data.draw(st.binary(max_size=40))
    store.put(key, old[:at] + new + old[at + length :])
    result = publish(store, 1)
    state = load_state(store, find_head(store))
    expected, found = undamaged(), answers_of(state)
    for case, answer in found.items():
        assert answer == expected[case]
    good = {RECORDS[0].case_id, RECORDS[1].case_id}
    assert good <= set(found)
    for damage in result.damaged:
        assert damage == Damage("made", 1, "bad", damage.reason)
    assert bool(result.damaged) == (("made", "bad") not in held_shards(state))


@cache
def undamaged() -> dict[str, object]:
    """Return the results of an intact store."""
    store = MemoryStore()
    write_campaign(store, TWO_SHARDS)
    publish(store, 1)
    return answers_of(load_state(store, find_head(store)))


def answers_of(state: State) -> dict[str, object]:
    return {row["case"]: row for row in state.measurements.to_pylist()}


class CaselessStore(MemoryStore):
    """A store on a file system that ignores the case of file names."""

    def get(self, key: str) -> bytes:
        return super().get(_caseless(key))

    def put(self, key: str, data: bytes) -> None:
        super().put(_caseless(key), data)


def _caseless(key: str) -> str:
    return key.lower() if key.endswith(".csv") and "/snapshots/" in key else key


def test_case_insensitive_store_refuses_files_that_differ_only_in_case() -> None:
    for kernels, is_published in ((("Add", "Mul"), True), (("Add", "ADD"), False)):
        records = [add_record(4, kernel=kernel) for kernel in kernels]
        durations = answered(records[:1], 10.0) | answered(records[1:], 20.0)
        made = MadePlan([MadeShard("good", records, [durations])])
        store = CaselessStore()
        write_campaign(store, made)
        if is_published:
            publish(store, 1)
            continue
        with pytest.raises(OpmeterError):
            publish(store, 1)
        assert find_head(store) is None
        store = MemoryStore()
        write_campaign(store, made)
        publish(store, 1)
        assert find_problems(store) == []
