"""Durations of a fake runtime are never mistaken for those of a device: the runtime has two values,
and is part of the stack and of every id."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.database.commits import Commit, commit_from_json, commit_to_json, read_commit
from collector.database.manifest import snapshot_manifest_from_json
from collector.database.merge import CREATE, merge_plans
from collector.database.rows import rows_of_part
from collector.model import keys
from collector.model.plan import plan_from_json
from collector.model.stack import Runtime
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

RECORDS = [add_record(rows) for rows in range(1, 4)]
PART = keys.part("made", "s1", "attempt-1", 0)


@pytest.fixture
def store() -> MemoryStore:
    """A campaign on a fake runtime, measured and not yet merged."""
    found = MemoryStore()
    shard = MadeShard("s1", RECORDS, [answered(RECORDS, 10.0)])
    write_campaign(found, MadePlan([shard], runtime=Runtime.FAKE))
    return found


def published(store: MemoryStore) -> Commit:
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    return read_commit(store, 1)


def test_fake_runtime_is_recorded_in_plan_and_commit(store):
    plan = plan_from_json(store.get(keys.plan("made", 1)))
    assert plan.stack.runtime is Runtime.FAKE
    assert published(store).runtime is Runtime.FAKE


@pytest.mark.parametrize("runtime", ["real", "none", "banana", ""])
def test_rows_edited_to_another_runtime_are_refused(store, runtime):
    edited = store.get(PART).replace(b",fake,", f",{runtime},".encode())
    assert edited != store.get(PART)
    with pytest.raises(BadInput, match=PART):
        rows_of_part(edited, key=PART)


@pytest.mark.parametrize("runtime", ["none", "banana", "", None, 1, ["real"]])
def test_commit_or_manifest_without_a_runtime_is_refused(store, runtime):
    commit = published(store)
    reported = json.loads(commit_to_json(commit)) | {"runtime": runtime}
    with pytest.raises(BadInput, match="db/commits/1"):
        commit_from_json(json.dumps(reported).encode(), key="db/commits/1")
    key = keys.snapshot_manifest(commit.snapshot)
    reported = json.loads(store.get(key)) | {"runtime": runtime}
    with pytest.raises(BadInput, match=key):
        snapshot_manifest_from_json(json.dumps(reported).encode(), key=key)


def test_plan_with_an_unknown_runtime_is_refused(store):
    key = keys.plan("made", 1)
    edited = store.get(key).replace(b'"runtime": "fake"', b'"runtime": "banana"')
    with pytest.raises(BadInput, match=f"{key}.*banana"):
        plan_from_json(edited, key=key)
