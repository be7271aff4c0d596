"""Garbage of merges can be deleted, and nothing else (`tests/attack/test_merge_rounds.py` does so
concurrently with merges and readers)."""

from pathlib import Path

import pytest

from collector.codec.errors import DamagedObject
from collector.database import cleanup
from collector.database.commits import find_head
from collector.database.manifest import read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_strays
from collector.model import keys
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


def write_plan(store: Store, number: int) -> tuple[str, int]:
    records = [add_record(number % 5 + rows) for rows in range(1, 3)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 5.0 + number % 7)])
    plan = MadePlan([shard], number=number, head_commit=number - 1)
    write_campaign(store, plan)
    return plan.name


def test_garbage_excludes_files_of_commits_that_may_be_in_progress() -> None:
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
