"""Any change of a database that contradicts its commits is detected."""

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.codec.canonical import readable_json, sha256_hex
from collector.database.commits import Commit, commit_to_json, history, read_commit
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.verified import verified_commit, write_mark
from collector.database.verify import find_problems
from collector.database.verify_version import Shown, shown_after
from collector.database.view import content_hash, view_of
from collector.model import keys
from collector.model.manifest import StoredObject, manifest_from_json, manifest_to_json
from collector.model.manifest import shard_commit_from_json as shard_from_json
from collector.model.manifest import shard_commit_to_json as shard_to_json
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.forging import (
    entry_of,
    forge_manifest,
    forge_version,
    shown_key,
    tree_key,
    version_files,
)
from tests.unit.collector.database.test_database_head_content import random_plan
from tests.unit.collector.database.wrapped_stores import CountingStore
from tests.unit.collector.naming import names

Damage = Callable[[MemoryStore, Commit], None]
CSV = f"{PATH}/Add.csv"
SHOWN = ".parquet"


@pytest.fixture(scope="module")
def made() -> MemoryStore:
    return database()


@pytest.fixture
def store(made: MemoryStore) -> MemoryStore:
    """A copy for each test to damage."""
    copy = MemoryStore()
    for info in made.list(""):
        copy.put(info.key, made.get(info.key))
    return copy


def database(second_us: float = 20.0) -> MemoryStore:
    """A database of two commits; in the second the first case was tried twice."""
    store = MemoryStore()
    for number, rows, mean_us in ((1, 2, 10.0), (2, 5, second_us)):
        records = [add_record(n) for n in range(1, rows)]
        sessions = [{records[0].case_id: Tried()}, answered(records, mean_us)]
        shard = MadeShard(f"shard-{number}", records, sessions[2 - number :])
        plan = MadePlan([shard], number=number, head_commit=number - 1, op_mapping="a: 1\n")
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    return store


def test_an_undamaged_database_has_no_problems(store: MemoryStore) -> None:
    assert find_problems(store) == []
    assert find_problems(store, [read_commit(store, 1)]) == []
    assert find_problems(MemoryStore()) == []


def flip_a_byte_in_a_csv(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv"
    data = bytearray(store.get(key))
    data[-5] ^= 1
    store.put(key, bytes(data))


def delete_a_csv(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv")


def edit_the_manifest(store: MemoryStore, commit: Commit) -> None:
    key = keys.version_manifest(commit.snapshot, PATH)
    store.put(key, store.get(key).replace(b'"rows": 4', b'"rows": 3'))


def edit_the_snapshots_manifest(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot_manifest(commit.snapshot)
    store.put(key, store.get(key).replace(b'"cases": 4', b'"cases": 3'))


def delete_the_manifest(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.snapshot_manifest(commit.snapshot))


def delete_a_versions_manifest(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.version_manifest(commit.snapshot, PATH))


def miscount_the_cases(store: MemoryStore, commit: Commit) -> None:
    forge_manifest(store, commit, lambda m: m["versions"][PATH].update(cases=5))


def name_another_shard(store: MemoryStore, commit: Commit) -> None:
    forge_version(store, commit, lambda files: files["shards"].update(made=["shard-1"]))


def flip_a_byte_in_the_profiles(store: MemoryStore, commit: Commit) -> None:
    flip_a_byte(store, keys.profiles(commit.snapshot, PATH))


def flip_a_byte_in_the_intervals(store: MemoryStore, commit: Commit) -> None:
    flip_a_byte(store, shown_key(store, commit))


def flip_a_byte(store: MemoryStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def delete_the_intervals(store: MemoryStore, commit: Commit) -> None:
    store.delete(shown_key(store, commit))


def unlist_the_intervals(store: MemoryStore, commit: Commit) -> None:
    forge_version(store, commit, lambda files: files.pop("shown"))


def narrow_the_intervals(store: MemoryStore, commit: Commit) -> None:
    """The forged table has the hashes of the manifests and the commit: only the state
    contradicts."""
    table = read_intervals(store, commit)
    at = table.column_names.index("stack_high_us")
    forge_intervals(store, commit, table.set_column(at, "stack_high_us", table["mean_us"]))


def lose_an_interval(store: MemoryStore, commit: Commit) -> None:
    table = read_intervals(store, commit)
    names = table.column_names[table.column_names.index("mean_us") :]
    nothing = {name: pa.nulls(1, table.schema.field(name).type) for name in names}
    first = table.slice(0, 1)
    for name, cell in nothing.items():
        first = first.set_column(table.column_names.index(name), name, cell)
    forge_intervals(store, commit, pa.concat_tables([first, table.slice(1)]))


def miscount_the_intervals(store: MemoryStore, commit: Commit) -> None:
    forge_intervals(store, commit, read_intervals(store, commit), rows=1)


def read_intervals(store: MemoryStore, commit: Commit) -> pa.Table:
    return pq.read_table(io.BytesIO(store.get(shown_key(store, commit))))


def forge_intervals(store: MemoryStore, commit: Commit, table: pa.Table, rows: int = 4) -> None:
    out = io.BytesIO()
    pq.write_table(table, out)
    entry = entry_of(out.getvalue(), rows)
    store.put(shown_key(store, commit), out.getvalue())
    forge_version(store, commit, lambda files: files.update(shown=entry))


def delete_measurements(store: MemoryStore, commit: Commit) -> None:
    *_, last = version_files(store, commit).measurements
    store.delete(keys.measurements(PATH, last))


def delete_a_part(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.part("made", "shard-2", "attempt-1", 0))


def tear_the_commit(store: MemoryStore, commit: Commit) -> None:
    store.put(keys.commit(commit.number), b"{}")


def claim_another_parent(store: MemoryStore, commit: Commit) -> None:
    value = json.loads(commit_to_json(commit)) | {"parent": 0}
    store.put(keys.commit(commit.number), readable_json(value))


def claim_another_content(store: MemoryStore, commit: Commit) -> None:
    value = json.loads(commit_to_json(commit)) | {"content_hash": "0" * 64}
    store.put(keys.commit(commit.number), readable_json(value))


def claim_another_runtime(store: MemoryStore, commit: Commit) -> None:
    value = json.loads(commit_to_json(commit)) | {"runtime": "fake"}
    store.put(keys.commit(commit.number), readable_json(value))


def publish_an_unmeasured_duration(store: MemoryStore, commit: Commit) -> None:
    """The attacker rewrites the CSV, the manifests and the commit: only the state contradicts."""
    key = keys.snapshot(commit.snapshot) + CSV
    data = store.get(key).replace(b"20.000000", b"19.000000")
    assert data != store.get(key)
    forge_csv(store, commit, data)


def hide_a_row(store: MemoryStore, commit: Commit) -> None:
    lines = store.get(keys.snapshot(commit.snapshot) + CSV).splitlines(keepends=True)
    forge_csv(store, commit, b"".join(lines[:-1]))


def forge_csv(store: MemoryStore, commit: Commit, data: bytes) -> None:
    store.put(keys.snapshot(commit.snapshot) + CSV, data)
    forge_version(store, commit, lambda files: files["tree"].update({CSV: entry_of(data, 4)}))


SHARD = ("made", "shard-2")


def edit_a_part(store: MemoryStore, commit: Commit) -> None:
    key = keys.part(*SHARD, "attempt-1", 1)
    store.put(key, store.get(key).replace(b"node-1", b"node-2"))


def edit_an_attempts_manifest(store: MemoryStore, commit: Commit) -> None:
    key = keys.attempt_manifest(*SHARD, "attempt-1")
    store.put(key, store.get(key).replace(b"node-1", b"node-2"))


def commit_a_shard_again(store: MemoryStore, commit: Commit) -> None:
    """All hashes under `campaigns/` are right, and lead to other durations than the published
    ones."""
    part = keys.part(*SHARD, "attempt-1", 1)
    data = store.get(part).replace(b"20.0", b"19.0")
    store.put(part, data)
    where = keys.attempt_manifest(*SHARD, "attempt-1")
    manifest = manifest_from_json(store.get(where), key=where)
    first, entry = manifest.parts
    named = replace(entry, part=StoredObject(part, len(data), sha256_hex(data)))
    edited = manifest_to_json(replace(manifest, parts=(first, named)))
    store.put(where, edited)
    key = keys.committed(*SHARD)
    stored = StoredObject(where, len(edited), sha256_hex(edited))
    store.put(
        key, shard_to_json(replace(shard_from_json(store.get(key), key=key), manifest=stored))
    )


def take_a_shards_commit_away(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.committed(*SHARD))


def edit_a_plan(store: MemoryStore, commit: Commit) -> None:
    key = keys.plan("made", 2)
    store.put(key, store.get(key).replace(b'"devices": 1', b'"devices": 2'))


def take_the_commit_away(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.commit(2))


def take_a_plan_away(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.plan("made", 2))


def publish_invented_measurements(store: MemoryStore, commit: Commit) -> None:
    """All of `db/` belongs to other durations, with right hashes."""
    forged = database(second_us=19.0)
    for info in list(store.list("db/")):
        store.delete(info.key)
    for info in forged.list("db/"):
        store.put(info.key, forged.get(info.key))


def call_all_final(store: MemoryStore, commit: Commit) -> None:
    """The first try of a case is marked final too, by no manifest."""
    *_, own = version_files(store, commit).measurements
    table = pq.read_table(io.BytesIO(store.get(keys.measurements(PATH, own))))
    at = table.column_names.index("final")
    out = io.BytesIO()
    pq.write_table(table.set_column(at, "final", pa.array([True] * table.num_rows)), out)
    entry = entry_of(out.getvalue(), table.num_rows)
    store.put(keys.measurements(PATH, own), out.getvalue())
    forge_version(store, commit, lambda files: files["measurements"].update({own: entry}))


def forget_measurements(store: MemoryStore, commit: Commit) -> None:
    first, *_ = version_files(store, commit).measurements
    forge_version(store, commit, lambda files: files["measurements"].pop(first))


@pytest.mark.parametrize(
    ("damage", "where", "named"),
    [
        (flip_a_byte_in_a_csv, "/Add.csv", ["sha256"]),
        (delete_a_csv, "/Add.csv", []),
        (edit_the_manifest, "/manifest.json", ["sha256"]),
        (delete_the_manifest, "/manifest.json", []),
        (edit_the_snapshots_manifest, "/manifest.json", ["sha256"]),
        (delete_a_versions_manifest, "/manifest.json", []),
        (miscount_the_cases, "/manifest.json", ["cases", 4, 5]),
        (name_another_shard, "/manifest.json", ["shards"]),
        (flip_a_byte_in_the_profiles, "/profiles.parquet", ["sha256"]),
        (flip_a_byte_in_the_intervals, SHOWN, ["sha256"]),
        (delete_the_intervals, SHOWN, []),
        (unlist_the_intervals, "/manifest.json", ["shown"]),
        (narrow_the_intervals, SHOWN, ["state"]),
        (lose_an_interval, SHOWN, ["state"]),
        (miscount_the_intervals, SHOWN, [1, 4]),
        (delete_measurements, ".parquet", []),
        (delete_a_part, "/attempt-1/part-0.csv", []),
        (edit_a_part, "/attempt-1/part-1.csv", ["sha256"]),
        (edit_an_attempts_manifest, "/attempt-1/manifest.json", ["sha256"]),
        (commit_a_shard_again, ".parquet", [keys.part(*SHARD, "attempt-1", 1)]),
        (take_a_shards_commit_away, ".parquet", [keys.part(*SHARD, "attempt-1", 1)]),
        (edit_a_plan, keys.plan("made", 2), []),
        (take_the_commit_away, keys.commit(2), [keys.HEAD]),
        (take_a_plan_away, keys.plan("made", 2), []),
        (publish_invented_measurements, ".parquet", [4, keys.part(*SHARD, "attempt-1", 1)]),
        (call_all_final, ".parquet", [1, keys.part(*SHARD, "attempt-1", 0)]),
        (forget_measurements, "/manifest.json", ["missing"]),
        (tear_the_commit, keys.commit(2), []),
        (claim_another_parent, keys.commit(2), ["parent", 0, 1]),
        (claim_another_content, keys.commit(2), ["content_hash", "0" * 64]),
        (claim_another_runtime, keys.commit(2), ["runtime", "fake"]),
        (publish_an_unmeasured_duration, "/Add.csv", ["state"]),
        (hide_a_row, "/Add.csv", ["state"]),
    ],
)
def test_damage_is_reported_with_its_key(
    store: MemoryStore, damage: Damage, where: str, named: Sequence[object]
) -> None:
    damage(store, read_commit(store, 2))
    problems = find_problems(store)
    assert any(one.key.endswith(where) and names(one.text, *named) for one in problems), problems
    assert {problem.commit for problem in problems} == {2}


def test_changed_plan_is_reported_once(store: MemoryStore) -> None:
    edit_a_plan(store, read_commit(store, 2))
    assert [problem.key for problem in find_problems(store)] == [keys.plan("made", 2)]


def test_missing_commit_in_the_middle_is_reported(store: MemoryStore) -> None:
    store.delete(keys.commit(1))
    [problem] = find_problems(store)
    assert (problem.commit, problem.key) == (1, keys.commit(1))


def of_another_author(store: MemoryStore, number: int) -> None:
    key = keys.commit(number)
    store.put(key, store.get(key).replace(b'"author": "test"', b'"author": "tess"'))


def another_parent(store: MemoryStore, number: int) -> None:
    """Change one digit."""
    sha256 = read_commit(store, number).parent_sha256
    other = ("1" if sha256[0] == "0" else "0") + sha256[1:]
    key = keys.commit(number)
    store.put(key, store.get(key).replace(sha256.encode(), other.encode()))


@pytest.mark.parametrize("hint", ["there", "gone"])
@pytest.mark.parametrize(
    ("harm", "number", "other"), [(of_another_author, 1, 2), (another_parent, 2, 1)]
)
def test_changed_one_of_two_contradicting_commits_is_reported(
    store: MemoryStore, hint: str, harm: Callable[[MemoryStore, int], None], number: int, other: int
) -> None:
    harm(store, number)
    if hint == "gone":
        store.delete(keys.HEAD)
    [problem] = find_problems(store)
    assert (problem.commit, problem.key) == (number, keys.commit(number))
    assert names(problem.text, "sha256", keys.commit(other))


def recorded() -> MemoryStore:
    """A database with its raw records, published by two commits."""
    store = MemoryStore()
    for number in (1, 2):
        records = [add_record(number)]
        shard = MadeShard(f"shard-{number}", records, [answered(records, 5.0)])
        made = MadePlan([shard], number=number, head_commit=number - 1, raw=b"recorded")
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test")
    return store


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda store, key: store.put(key, b"other"), ["sha256"]),
        (
            lambda store, key: store.delete(key),
            [keys.attempt_manifest("made", "shard-2", "attempt-1")],
        ),
    ],
)
@pytest.mark.parametrize("spell", [keys.raw_summary, keys.raw_journal])
def test_raw_profiler_files_are_verified_unless_excluded(
    harm: Callable[[MemoryStore, str], None], named: Sequence[object], spell: Callable[..., str]
) -> None:
    store = recorded()
    assert find_problems(store) == []
    key = spell("made", "shard-2", "attempt-1", 0)
    harm(store, key)
    [problem] = find_problems(store)
    assert (problem.commit, problem.key) == (2, key) and names(problem.text, *named)
    assert find_problems(store, with_raw=False) == []


def test_raw_file_of_an_unpublished_shard_is_not_verified() -> None:
    store = recorded()
    records = [add_record(9)]
    made = MadePlan(
        [MadeShard("shard-9", records, [answered(records, 5.0)])], number=3, raw=b"recorded"
    )
    write_campaign(store, made)
    store.put(keys.raw_summary("made", "shard-9", "attempt-1", 0), b"other")
    assert find_problems(store) == []


def test_every_object_is_read_once_for_all_commits(store: MemoryStore) -> None:
    for number in (3, 4, 5):
        records = [add_record(10 * number)]
        made = MadePlan(
            [MadeShard(f"shard-{number}", records, [answered(records, 1.0)])],
            number=number,
            head_commit=number - 1,
        )
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test")
    counting = CountingStore(store)
    assert find_problems(counting) == []
    read = [key for verb, key in counting.calls if verb == "get"]
    again = {key for key in read if read.count(key) > 1}
    assert again <= {keys.HEAD, keys.commit(5)}  # the end of the log is found before it is read
    assert {keys.part("made", f"shard-{n}", "attempt-1", 0) for n in (1, 2, 3, 4, 5)} <= set(read)


KINDS = {
    kernel: [add_record(rows, kernel=kernel) for rows in range(1, 9)] for kernel in ("Add", "Mul")
}


# With each of these, a commit has another effect without a row: the stack of a
# directory (5, 7), and the widths of its intervals (10).
@pytest.mark.parametrize("seed", [1, 5, 7, 10])
def test_incremental_verification_equals_a_complete_rendering(seed: int) -> None:
    """Only changed files are rendered, with the same result as rendering everything."""
    chance, store = random.Random(seed), MemoryStore()
    for number in range(1, 6):
        records = KINDS[chance.choice(("Add", "Mul"))]
        made = random_plan(chance, number, records)
        made = replace(made, op_mapping=f"a: {chance.randint(1, 2)}\n")
        write_campaign(store, made)
        merge_plans(store, [made.name], guard=CREATE, author="test", supersede_stack=True)
    shown: Shown | None = None
    for commit in reversed(list(history(store))):
        manifest = read_manifest(store, commit)
        state = load_state(store, commit, manifest)
        names = frozenset(version_files(store, commit).measurements)
        shown = shown_after(shown, PATH, state, names)
        whole = view_of(state)
        assert {p: (f.sha256, f.rows) for p, f in shown.files.items()} == {
            p: (sha256_hex(f.data), f.rows) for p, f in whole.files.items()
        }
        assert shown.interval_rows.equals(whole.intervals)
        assert content_hash(state, whole) == commit.content_hash
    assert find_problems(store) == []


def test_verification_after_a_mark_reads_only_new_commits(store: MemoryStore) -> None:
    secret = "a key of the user"
    write_mark(store, read_commit(store, 2), secret, with_raw=True)
    for number in (3, 4):
        records = [add_record(10 * number)]
        shard = MadeShard(f"shard-{number}", records, [answered(records, 1.0)])
        plan = MadePlan([shard], number=number, head_commit=number - 1)
        write_campaign(store, plan)
        merge_plans(store, [plan.name], guard=CREATE, author="test")
    marked = verified_commit(store, secret, with_raw=True)
    assert marked is not None and marked.number == 2
    counting = CountingStore(store)
    assert find_problems(counting, since=marked.number) == []
    read = {key for verb, key in counting.calls if verb == "get"}
    parts = {key for key in read if "/part-" in key}
    assert parts == {keys.part("made", f"shard-{n}", "attempt-1", 0) for n in (3, 4)}
    assert tree_key(store, read_commit(store, 2), CSV) not in read
    for key in (
        tree_key(store, read_commit(store, 4), CSV),
        keys.part("made", "shard-4", "attempt-1", 0),
    ):
        whole = store.get(key)
        store.put(key, whole.replace(b"1.0", b"9.0"))
        assert {problem.key for problem in find_problems(store, since=2)} == {key}
        store.put(key, whole)
    edit_a_part(store, read_commit(store, 2))
    assert find_problems(store, since=2) == [] != find_problems(store)


def test_mark_is_valid_only_with_its_key_and_commit(store: MemoryStore) -> None:
    assert verified_commit(store, "key", with_raw=False) is None
    write_mark(store, read_commit(store, 2), "key", with_raw=False)
    assert verified_commit(store, "key", with_raw=False) == read_commit(store, 2)
    assert verified_commit(store, "key", with_raw=True) is None
    assert verified_commit(store, "another", with_raw=False) is None
    mark = store.get(keys.VERIFIED_MARK)
    store.put(keys.VERIFIED_MARK, mark.replace(b'"number":2', b'"number":1'))
    assert verified_commit(store, "key", with_raw=False) is None
    store.put(keys.VERIFIED_MARK, mark)
    of_another_author(store, 2)
    assert verified_commit(store, "key", with_raw=False) is None
    store.put(keys.VERIFIED_MARK, b"{")
    assert verified_commit(store, "key", with_raw=False) is None
