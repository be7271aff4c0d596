"""What merges leave is deleted next to merges and readers, each killed at random; nothing else."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.codec.errors import DamagedObject
from collector.database import cleanup
from collector.database.commits import find_head, read_commit
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.verify import find_problems, find_strays
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.merge_process import MergeOrder, MergeProcesses
from tests.unit.collector.database.test_database_delta import ids, rows_of

deltalake = pytest.importorskip("deltalake")
ROUNDS = int(os.environ.get("OPMETER_ROUNDS") or 4)
CALLS = 60  # of a merge of one plan, about


def write_plan(store: Store, number: int) -> tuple[str, int]:
    records = [add_record(number % 5 + rows) for rows in range(1, 3)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 5.0 + number % 7)])
    plan = MadePlan([shard], number=number, head_commit=number - 1)
    write_campaign(store, plan)
    return plan.name


@pytest.fixture
def merges() -> Iterator[MergeProcesses]:
    with MergeProcesses() as processes:
        yield processes


def collect(store: Store, chance: random.Random) -> int:
    """Delete garbage, and stop after a random number of objects, as if killed."""
    found = cleanup.garbage(store)
    for info in found[: chance.randint(0, len(found))]:
        store.delete(info.key)
    return len(found)


def read_all(store: Store) -> None:
    """What a reader does: the newest version, and one that it has opened before."""
    head = find_head(store)
    if head is not None:
        load_state(store, head)
        load_state(store, read_commit(store, max(1, head.number - 1)))


@pytest.mark.slow
def test_nothing_that_a_version_names_is_deleted(tmp_path: Path, merges: MergeProcesses) -> None:
    """In each round two merges run at once, each killed at a random call, next to a collection that
    is stopped at random and a reader."""
    chance, store = random.Random(1), open_store(tmp_path.as_uri())
    merge_plans(store, [write_plan(store, 1)], guard=CREATE, author="test")
    collected, number = 0, 1
    for _ in range(ROUNDS):
        plans = [write_plan(store, number + 1), write_plan(store, number + 2)]
        number += 2
        kills = [chance.choice((0, chance.randint(1, CALLS))) for _ in plans]
        orders = [
            MergeOrder(tmp_path.as_uri(), [plan], kill_at=kill)
            for plan, kill in zip(plans, kills, strict=True)
        ]
        running = threading.Thread(target=merges.run, args=(orders,))
        running.start()
        while running.is_alive():
            collected += collect(store, chance)
            read_all(store)
        running.join()
        collected += collect(store, chance)
        head = merge_plans(store, plans, guard=CREATE, author="test").head
        assert head is not None and find_problems(store) == []
        for name, root in (("measurements", keys.MEASUREMENTS), ("shown", keys.SHOWN)):
            table = deltalake.DeltaTable(tmp_path / "db" / name)
            assert table.version() == head.number
            assert ids(table.to_pyarrow_table()) == ids(rows_of(store, head, root))
    for info in cleanup.garbage(store):
        store.delete(info.key)
    assert cleanup.garbage(store) == [] and find_problems(store) == []
    print(f"{ROUNDS} rounds, {collected} objects of garbage")


def test_garbage_is_of_commits_that_exist_only() -> None:
    store = MemoryStore()
    merge_plans(store, [write_plan(store, 1)], guard=CREATE, author="test")
    assert cleanup.garbage(store) == []
    head = find_head(store)
    assert head is not None
    (path,) = read_manifest(store, head).versions
    lost, running = "00000001-0123abcd", "00000002-0123abcd"
    keys_of = [
        lambda name: keys.shown(path, name),
        lambda name: keys.measurements(path, name),
        lambda name: keys.index(name, path),
        lambda name: keys.snapshot_manifest(name),
        lambda name: keys.snapshot(name) + f"{path}/Add.csv",
    ]
    for spell in keys_of:
        for name in (lost, running):
            store.put(spell(name), b"left")
    store.put("db/shown/notes.txt", b"of a user")
    assert {info.key for info in cleanup.garbage(store)} == {spell(lost) for spell in keys_of}
    merge_plans(store, [write_plan(store, 2)], guard=CREATE, author="test")
    expected = {spell(name) for spell in keys_of for name in (lost, running)}
    assert {info.key for info in cleanup.garbage(store)} == expected
    assert {stray.key for stray in find_strays(store)} > {"db/shown/notes.txt"}
    store.delete(keys.commit(1))
    with pytest.raises(DamagedObject):
        cleanup.garbage(store)


def test_usage_counts_every_object_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    merge_plans(store, [write_plan(store, 1)], guard=CREATE, author="test")
    found = cleanup.usage(store)
    listed = [info for prefix in ("db/", "campaigns/") for info in store.list(prefix)]
    assert sum(one.objects for one in found) == len(listed)
    assert sum(one.size_bytes for one in found) == sum(info.size_bytes for info in listed)
    kinds = {one.kind: one for one in found}
    assert kinds["measurements"].of.endswith("/vllm_ascend/vllm0_torch2.13.0_cann0")
    assert kinds["campaigns"].of == "made" and kinds["Delta logs"].objects == 4
