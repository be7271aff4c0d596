"""A database that is not what its commits say is found out, whatever was done to it."""

import json
from collections.abc import Callable

import pytest

from collector import keys
from collector.canonical import readable_json, sha256_hex
from collector.database.commits import Commit, commit_to_json, read_commit
from collector.database.merge import CREATE, merge
from collector.database.snapshot import read_manifest
from collector.database.verify import verify
from collector.store.memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

Damage = Callable[[MemoryStore, Commit], None]


@pytest.fixture
def store() -> MemoryStore:
    """A database of two commits."""
    store = MemoryStore()
    for number, rows in ((1, 2), (2, 5)):
        records = [add_record(n) for n in range(1, rows)]
        shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0 * number)])
        plan = MadePlan([shard], number=number, head_commit=number - 1, op_mapping="a: 1\n")
        write_campaign(store, plan)
        merge(store, [plan.name], guard=CREATE, author="test")
    return store


def test_an_undamaged_database_has_no_problems(store: MemoryStore) -> None:
    assert verify(store) == []
    assert verify(store, [read_commit(store, 1)]) == []
    assert verify(MemoryStore()) == []


def flip_a_byte_in_a_csv(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv"
    data = bytearray(store.get(key))
    data[-5] ^= 1
    store.put(key, bytes(data))


def delete_a_csv(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv")


def edit_the_manifest(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot_manifest(commit.snapshot)
    store.put(key, store.get(key).replace(b'"rows": 4', b'"rows": 3'))


def delete_the_manifest(store: MemoryStore, commit: Commit) -> None:
    store.delete(keys.snapshot_manifest(commit.snapshot))


def flip_a_byte_in_the_cases(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot(commit.snapshot) + "cases.parquet"
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def delete_measurements(store: MemoryStore, commit: Commit) -> None:
    store.delete(read_manifest(store, commit).measurements[-1])


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


def publish_a_number_nobody_measured(store: MemoryStore, commit: Commit) -> None:
    """The forger rewrites the CSV, the manifest and the commit: only the state tells."""
    key = keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv"
    data = store.get(key).replace(b"20.000000", b"19.000000")
    assert data != store.get(key)
    forge_manifest(store, commit, key, data)


def hide_a_row(store: MemoryStore, commit: Commit) -> None:
    key = keys.snapshot(commit.snapshot) + f"{PATH}/Add.csv"
    lines = store.get(key).splitlines(keepends=True)
    forge_manifest(store, commit, key, b"".join(lines[:-1]))


def forge_manifest(store: MemoryStore, commit: Commit, key: str, data: bytes) -> None:
    store.put(key, data)
    where = keys.snapshot_manifest(commit.snapshot)
    manifest = json.loads(store.get(where))
    entry = {"sha256": sha256_hex(data), "size_bytes": len(data), "rows": 4}
    manifest["files"][f"{PATH}/Add.csv"] = entry
    store.put(where, readable_json(manifest))
    value = json.loads(commit_to_json(commit))
    value["manifest_sha256"] = sha256_hex(store.get(where))
    store.put(keys.commit(commit.number), readable_json(value))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flip_a_byte_in_a_csv, "Add.csv: sha256"),
        (delete_a_csv, "Add.csv: it is not there"),
        (edit_the_manifest, "manifest.json: sha256"),
        (delete_the_manifest, "manifest.json: it is not there"),
        (flip_a_byte_in_the_cases, "cases.parquet: sha256"),
        (delete_measurements, ".parquet: it is not there"),
        (delete_a_part, "attempt-1/part-0.csv, which is not there"),
        (tear_the_commit, "the commit cannot be read"),
        (claim_another_parent, "its parent is 0, not 1"),
        (claim_another_content, "the commit claims content 000"),
        (claim_another_runtime, "its runtime is fake"),
        (publish_a_number_nobody_measured, "Add.csv does not follow from the state"),
        (hide_a_row, "Add.csv does not follow from the state"),
    ],
)
def test_damage_is_found_where_it_is(store: MemoryStore, damage: Damage, told: str) -> None:
    damage(store, read_commit(store, 2))
    problems = verify(store)
    assert any(told in problem.text for problem in problems), problems
    assert {problem.commit for problem in problems} == {2}


def test_a_commit_missing_in_the_middle_is_found(store: MemoryStore) -> None:
    store.delete(keys.commit(1))
    assert [problem.commit for problem in verify(store)] == [1]
