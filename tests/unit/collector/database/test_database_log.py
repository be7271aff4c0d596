"""A log with a missing commit, a fork or another end than before is not extended, and is still
readable."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.canonical import readable_json, sha256_hex, short_hash
from collector.codec.errors import BadInput, DamagedObject, NewerFormat
from collector.database.commits import (
    Commit,
    commit_from_json,
    commit_to_json,
    find_head,
    head_to_extend,
    history,
    read_commit,
    read_log,
)
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, MergeResult, merge_plans
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.environment import Environment, use_environment
from collector.model import keys
from collector.model.stack import Runtime
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.wrapped_stores import WrappedStore
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 4)]


def plan(number: int) -> MadePlan:
    shard = MadeShard(f"shard-{number}", RECORDS, [answered(RECORDS, 10.0 + number)])
    return MadePlan([shard], number=number, head_commit=number - 1)


def publish(store: Store, number: int) -> MergeResult:
    write_campaign(store, plan(number))
    return merge_plans(store, [("made", number)], guard=CREATE, author="test")


def database(commits: int) -> MemoryStore:
    """Return a store with this many commits: a copy of one that is built once."""
    store = MemoryStore()
    for key, data in built(commits).items():
        store.put(key, data)
    return store


@cache
def built(commits: int) -> Mapping[str, bytes]:
    store = MemoryStore()
    for number in range(1, commits + 1):
        publish(store, number)
    return {info.key: store.get(info.key) for info in store.list("")}


def edit(store: Store, number: int, **changes: object) -> None:
    """Edit a commit by hand."""
    key = keys.commit(number)
    store.put(key, readable_json(json.loads(store.get(key)) | changes))


def objects(store: Store) -> Mapping[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list("db/")}


def lag(store: Store, number: int) -> None:
    """Restore HEAD.json of the time when this commit was the newest."""
    store.put(keys.HEAD, readable_json(hint_of(store, number)))


def hint_of(store: Store, number: int) -> Mapping[str, object]:
    sha256 = sha256_hex(store.get(keys.commit(number)))
    return {"number": number, "sha256": sha256, "seal": short_hash([number, sha256])}


def test_a_commit_names_its_parent_by_number_and_hash() -> None:
    store = database(2)
    first, second = read_commit(store, 1), read_commit(store, 2)
    assert (first.parent, first.parent_sha256) == (0, "")
    assert (second.parent, second.parent_sha256) == (1, sha256_hex(store.get(keys.commit(1))))
    assert json.loads(store.get(keys.HEAD)) == hint_of(store, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("hint", [1, 3, None])
def test_missing_commit_is_reported_and_later_ones_are_read(hint: int | None) -> None:
    """HEAD.json may be older than the missing commit, know the newest one, or be missing."""
    store = database(3)
    lag(store, hint) if hint else store.delete(keys.HEAD)
    newest = read_commit(store, 3)
    store.delete(keys.commit(2))
    before = objects(store)
    with pytest.raises(DamagedObject, match=naming(f"{keys.commit(2)}:", keys.commit(3))):
        publish(store, 4)
    assert objects(store) == before
    assert find_head(store) == newest
    assert load_state(store, newest).measurements.num_rows == 9


def test_missing_newest_commit_is_reported() -> None:
    store = database(3)
    store.delete(keys.commit(3))
    before = objects(store)
    with pytest.raises(DamagedObject, match=naming(f"{keys.commit(3)}:", keys.HEAD)):
        publish(store, 4)
    assert objects(store) == before
    head = find_head(store)
    assert head is not None and head.number == 2
    store.delete(keys.HEAD)  # the user goes back on purpose
    assert publish(store, 4).head == read_commit(store, 3)


def test_missing_only_commit_is_reported() -> None:
    store = database(1)
    store.delete(keys.commit(1))
    with pytest.raises(DamagedObject, match=naming(f"{keys.commit(1)}:", keys.HEAD)):
        publish(store, 2)
    assert find_head(store) is None


def test_next_merge_restores_the_measurements_of_a_lost_commit() -> None:
    """If no object knows of the newest commit any more, its plan is still there."""
    store = database(3)
    lag(store, 2)
    expected = read_commit(store, 3).content_hash
    store.delete(keys.commit(3))
    again = merge_plans(store, [("made", 3)], guard=CREATE, author="test")
    assert again.commit is not None and again.commit.content_hash == expected


def repoint(store: Store, number: int) -> None:
    """A commit that names the snapshot of another with its number, with the right hashes."""
    commit = read_commit(store, number)
    name = f"{number:08d}-01234567"
    for info in list(store.list(keys.snapshot(commit.snapshot))):
        rest = info.key.removeprefix(keys.snapshot(commit.snapshot))
        store.put(keys.snapshot(name) + rest, store.get(info.key))
    edit(store, number, snapshot=name)


def test_changed_parent_commit_is_detected() -> None:
    store = database(3)
    repoint(store, 2)
    refusal = naming(f"{keys.commit(2)}:", "sha256", keys.commit(3))
    with pytest.raises(DamagedObject, match=refusal):
        publish(store, 4)
    with pytest.raises(DamagedObject, match=refusal):
        list(history(store))
    assert find_head(store) == read_commit(store, 3)


@pytest.mark.parametrize("hint", [2, 3])
def test_changed_newest_commit_is_detected(hint: int) -> None:
    store = database(3)
    lag(store, hint)
    repoint(store, hint)
    with pytest.raises(DamagedObject, match=naming(f"{keys.commit(hint)}:", keys.HEAD)):
        publish(store, 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"number": 3}, (3,)),
        ({"number": "2"}, ("number", "'2'")),
        ({"parent": 0}, ("parent", 0, 1)),
        ({"parent_sha256": ""}, ("sha256",)),
        ({"snapshot": "00000001-01234567"}, ("snapshot", "'00000001-01234567'", 2)),
        ({"snapshot": "00000002-../../x"}, ("snapshot", "'00000002-../../x'", 2)),
        ({"author": "\ud800"}, ("surrogate",)),
        ({"author": "\u00e9"}, ("canonical",)),
        ({"runtime": "banana"}, ("runtime", "real", "fake", "'banana'")),
        ({"extra": 1}, ("'extra'",)),
        ({"plans": [{"campaign": "made"}]}, ("plans[0].number",)),
        ({"counts": {"cases": 1e999}}, ("counts.cases", "inf")),
    ],
)
def test_commit_that_contradicts_itself_is_refused(
    changes: Mapping[str, object], named: tuple[object, ...]
) -> None:
    store = database(2)
    value = json.loads(store.get(keys.commit(2))) | changes
    store.put(keys.commit(2), json.dumps(value, indent=1, sort_keys=True).encode())
    for call in (find_head, head_to_extend, lambda store: read_commit(store, 2)):
        with pytest.raises(DamagedObject, match=naming(f"{keys.commit(2)}:", *named)):
            call(store)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"runtime": "fake"}, ("runtime", "fake", "real")),
        ({"content_hash": "0" * 64}, ("content_hash", "0" * 64)),
        ({"plans": [{"campaign": "x", "number": 1, "plan_hash": "0"}]}, ("plan 1", "x")),
    ],
)
def test_commit_that_contradicts_its_manifest_is_refused(
    changes: Mapping[str, object], named: tuple[object, ...]
) -> None:
    store = database(2)
    edit(store, 2, **changes)
    where = keys.snapshot_manifest(read_commit(store, 2).snapshot)
    store.delete(keys.HEAD)
    for call in (lambda: read_manifest(store, read_commit(store, 2)), lambda: publish(store, 3)):
        with pytest.raises(DamagedObject, match=naming(f"{keys.commit(2)}:", where, *named)):
            call()


def test_measurements_of_another_runtime_than_their_commit_are_refused() -> None:
    """The attacker changes the commit and the manifest, but not the rows."""
    store = database(1)
    commit = read_commit(store, 1)
    where = keys.snapshot_manifest(commit.snapshot)
    store.put(where, store.get(where).replace(b'"runtime": "real"', b'"runtime": "fake"'))
    edit(store, 1, runtime="fake", manifest_sha256=sha256_hex(store.get(where)))
    with pytest.raises(DamagedObject, match=naming(f"{keys.commit(1)}:", "'real'", "fake")):
        load_state(store, read_commit(store, 1))


def test_strays_are_neither_commits_nor_holes() -> None:
    store = database(2)
    strays = ["00000002.json~", ".DS_Store", "99999999.json", "3.json", "00000000.json", "x/y.json"]
    for name in strays:
        store.put(keys.COMMITS + name, b"")
    store.put(keys.commit(5), store.get(keys.commit(2)))  # a copy is not commit 5
    head = find_head(store)
    assert head is not None and head.number == 2
    assert publish(store, 3).commit == find_head(store) == read_commit(store, 3)
    assert [commit.number for commit in history(store)] == [3, 2, 1]


HINTS = [
    *(b"", b"1e999", b"null", b"[]", b'"x"', b'{"number":1e999,"sha256":"x"}', b"[" * 100_000),
    *(b'{"number":9}', b'{"number":9,"sha256":"x"}', b'{"number":-1,"sha256":"x"}', b"\xff"),
    b'{"number":true,"sha256":"' + b"0" * 64 + b'"}',
]


@pytest.mark.parametrize("hint", HINTS)
def test_invalid_head_hint_is_ignored_and_rewritten(hint: bytes) -> None:
    store = database(2)
    expected = store.get(keys.HEAD)
    store.put(keys.HEAD, hint)
    assert read_log(store).fault is None and find_head(store) == read_commit(store, 2)
    assert merge_plans(store, [("made", 2)], guard=CREATE, author="test").commit is None
    assert store.get(keys.HEAD) == expected


@pytest.mark.thorough
def test_head_hint_with_a_changed_bit_blames_no_commit() -> None:
    store = database(2)
    expected = store.get(keys.HEAD)
    for place in range(len(expected)):
        for bit in range(8):
            turned = bytes([expected[place] ^ (1 << bit)])
            store.put(keys.HEAD, expected[:place] + turned + expected[place + 1 :])
            assert read_log(store).fault is None, store.get(keys.HEAD)


class LaggingLists(WrappedStore):
    """A stale listing of commits."""

    unseen = 0

    def _call(self, verb: str, key: str, call: Callable[[], object]) -> object:  # type: ignore[override]
        answer = call()
        if verb == "list" and key == keys.COMMITS and self.unseen:
            assert isinstance(answer, tuple)
            return answer[: -self.unseen]
        return answer


@pytest.mark.parametrize("unseen", [1, 2, 3])
def test_stale_listing_hides_no_commit(unseen: int) -> None:
    store = LaggingLists(database(3))
    store.unseen = unseen
    head = find_head(store)
    assert head is not None and head.number == 3
    assert publish(store, 4).head == read_commit(store, 4)


@pytest.mark.thorough
def test_end_of_the_log_is_found_in_five_requests() -> None:
    class Counting(WrappedStore):
        calls = 0

        def _call(self, verb: str, key: str, call: Callable[[], object]) -> object:  # type: ignore[override]
            self.calls += 1
            return call()

    store = Counting(database(4))
    assert head_to_extend(store) == read_commit(store.store, 4)
    assert store.calls == 5  # the hint, a listing, the newest, none after it, its parent


@pytest.mark.thorough
@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(0, 200))
def test_any_bytes_are_a_commit_or_refused_with_the_key(noise: bytes, at: int, length: int) -> None:
    whole = commit_to_json(COMMIT)
    at %= len(whole)
    data = whole[:at] + noise + whole[at + length :]
    try:
        found = commit_from_json(data, key=keys.commit(2))
    except BadInput as error:
        assert str(error).startswith("db/commits/00000002.json: ")
    else:
        assert commit_to_json(found) == data


COMMIT = Commit(
    number=2,
    parent=1,
    parent_sha256="0" * 64,
    snapshot="00000002-0123abcd",
    manifest_sha256="1" * 64,
    content_hash="2" * 64,
    plans=(),
    nonce="n",
    guard="create",
    author="ü",
    time="",
    runtime=Runtime.REAL,
    counts={"cases": 1},
    view_version=1,
    written_by="0.1.0",
)


def test_commit_of_a_newer_format_is_not_reported_as_damaged() -> None:
    store = MemoryStore()
    value = json.loads(commit_to_json(replace(COMMIT, number=1, parent=0, parent_sha256="")))
    value |= {"format": 2, "written_by": "0.9.0", "snapshot": "00000001-0123abcd", "unknown": 1}
    store.create(keys.commit(1), readable_json(value))
    for read in (find_head, head_to_extend, find_problems):
        with pytest.raises(NewerFormat, match=r"0\.9\.0"):
            read(store)


def test_commit_is_read_as_written() -> None:
    changed = replace(COMMIT, counts={"cases": 2})
    assert commit_from_json(commit_to_json(COMMIT), key=keys.commit(2)) == COMMIT
    assert changed.sha256 == sha256_hex(commit_to_json(changed)) != COMMIT.sha256


def test_damaged_file_left_by_a_killed_merge_is_rewritten() -> None:
    """A file of measurements is named by its hash, and a repeated merge makes the same."""
    [left] = [info.key for info in database(1).list(f"{keys.MEASUREMENTS}device=")]
    store = MemoryStore()
    store.put(left, b"PAR1 and no more")
    assert publish(store, 1).commit is not None
    assert find_problems(store) == []


@pytest.mark.thorough
def test_damaged_file_of_the_parent_is_not_copied() -> None:
    store = database(1)
    rotten = keys.snapshot(read_commit(store, 1).snapshot) + f"{PATH}/Add.csv"
    store.put(rotten, store.get(rotten).replace(b"11.0", b"12.0"))
    mul = [record_of_shapes("Mul", "2,2;2,2", "2,2")]
    made = MadePlan([MadeShard("mul", mul, [answered(mul, 3.0)])], number=2, head_commit=1)
    write_campaign(store, made)
    second = merge_plans(store, [made.name], guard=CREATE, author="test").commit
    assert second is not None and find_problems(store, [second]) == []
    assert {problem.commit for problem in find_problems(store)} == {1}


class ClockThatIsSet(Environment):
    """An environment whose clock jumps back and forth by years."""

    def __init__(self) -> None:
        self._years = iter([2030, 2001, 1970, 2026])

    def utc_now(self) -> datetime:
        return datetime(next(self._years), 1, 1, tzinfo=UTC)


def test_order_of_versions_does_not_depend_on_the_clock() -> None:
    store = MemoryStore()
    with use_environment(ClockThatIsSet()):
        for number in range(1, 5):
            publish(store, number)
    head = find_head(store)
    assert head is not None and head.number == 4
    times = [read_commit(store, number).time[:4] for number in range(1, 5)]
    assert times == ["2030", "2001", "1970", "2026"]
    assert find_problems(store) == []
