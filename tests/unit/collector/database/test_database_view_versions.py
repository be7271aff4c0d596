"""The rule for changing the view: versions that another version of it rendered are checked by
everything but rendering them, and the next merge renders them again."""

import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collector.codec.canonical import readable_json, sha256_hex
from collector.database.commits import (
    Commit,
    commit_to_json,
    find_head,
    read_commit,
    write_hint,
)
from collector.database.intervals import INTERVAL_SCHEMA
from collector.database.manifest import INTERVALS, read_manifest
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.verify import find_problems, of_other_view_versions
from collector.database.view import VIEW_VERSION, content_hash_of, render, view_of
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from jobs.cli.database import log_command, verify_command
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
CSV = f"{PATH}/Add.csv"
_OTHER_COLUMNS = [f"other_{name}" for name in INTERVAL_SCHEMA.names]


def publish(store: Store, number: int) -> None:
    records = [add_record(n) for n in range(number, number + 2)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0 * number)])
    plan = MadePlan([shard], number=number, head_commit=number - 1)
    write_campaign(store, plan)
    merge_plans(store, [plan.name], guard=CREATE, author="test")


def shown_by_an_older_program(store: Store, *, version: int = VIEW_VERSION + 1) -> None:
    """Rewrite the newest commit as one that spelled its numbers otherwise, every hash right."""
    commit = find_head(store)
    assert commit is not None
    manifest, state = read_manifest(store, commit), load_state(store, commit)
    place = keys.snapshot(commit.snapshot)
    store.put(place + CSV, store.get(place + CSV).replace(b".000000", b".00"))
    data = store.get(place + CSV)
    assert data != render(state)[CSV].data
    where = keys.snapshot_manifest(commit.snapshot)
    value = json.loads(store.get(where))
    value["files"][CSV] |= {"sha256": sha256_hex(data), "size_bytes": len(data)}
    hashes = {path: value["files"][path]["sha256"] for path in manifest.tree}
    intervals = view_of(state).intervals.rename_columns(_OTHER_COLUMNS)
    out = io.BytesIO()
    pq.write_table(intervals, out)
    store.put(place + INTERVALS, out.getvalue())
    told = {"sha256": sha256_hex(out.getvalue()), "size_bytes": len(out.getvalue())}
    value["files"][INTERVALS] |= told
    value["content_hash"] = content_hash_of(state, hashes, intervals)
    store.put(where, readable_json(value))
    seal(store, commit, value["content_hash"], version)


def seal(store: Store, commit: Commit, content: str, version: int) -> None:
    value = json.loads(commit_to_json(commit))
    value["view_version"] = version
    where = keys.snapshot_manifest(commit.snapshot)
    value |= {"content_hash": content, "manifest_sha256": sha256_hex(store.get(where))}
    store.put(keys.commit(commit.number), readable_json(value))
    store.delete(keys.HEAD)
    head = read_commit(store, commit.number)
    write_hint(store, head.number, head.sha256)


def database(store: Store) -> None:
    """Two versions of an older program, and one of this."""
    for number in (1, 2):
        publish(store, number)
        shown_by_an_older_program(store)
    publish(store, 3)


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    database(made)
    return made


@pytest.mark.thorough
def test_what_an_older_view_version_showed_is_no_problem(store: MemoryStore) -> None:
    assert [read_commit(store, n).view_version for n in (1, 2, 3)] == [
        *[VIEW_VERSION + 1] * 2,
        VIEW_VERSION,
    ]
    assert find_problems(store) == [] and of_other_view_versions(store) == 2
    newest = [read_commit(store, 3)]
    assert find_problems(store, newest) == [] and of_other_view_versions(store, newest) == 0


def test_what_a_later_view_version_showed_is_none_either() -> None:
    store = MemoryStore()
    publish(store, 1)
    shown_by_an_older_program(store, version=VIEW_VERSION + 1)
    assert find_problems(store) == [] and of_other_view_versions(store) == 1


def test_other_bytes_of_this_view_version_do_not_follow_from_the_state() -> None:
    store = MemoryStore()
    publish(store, 1)
    shown_by_an_older_program(store, version=VIEW_VERSION)
    assert any(problem.key.endswith("/Add.csv") for problem in find_problems(store))
    assert of_other_view_versions(store) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_damaged_csv_is_found_whoever_showed_it(store: MemoryStore, number: int) -> None:
    key = keys.snapshot(read_commit(store, number).snapshot) + CSV
    store.put(key, store.get(key)[:-1])
    [problem] = find_problems(store)
    assert (problem.commit, problem.key) == (number, key)


def test_a_content_hash_that_does_not_follow_is_found_whoever_showed_it() -> None:
    store = MemoryStore()
    publish(store, 1)
    commit = read_commit(store, 1)
    where = keys.snapshot_manifest(commit.snapshot)
    store.put(where, readable_json(json.loads(store.get(where)) | {"content_hash": "0" * 64}))
    seal(store, commit, "0" * 64, VIEW_VERSION + 1)
    [problem] = find_problems(store)
    assert problem.key == keys.commit(1) and names(problem.text, "0" * 64)


@pytest.mark.thorough
def test_a_new_view_version_makes_no_version_and_the_next_merge_shows_all_of_it_anew() -> None:
    store = MemoryStore()
    publish(store, 1)
    shown_by_an_older_program(store)
    assert merge_plans(store, [("made", 1)], guard=CREATE, author="test").commit is None
    publish(store, 2)
    head = find_head(store)
    assert head is not None and (head.number, head.view_version) == (2, VIEW_VERSION)
    shown = store.get(keys.snapshot(head.snapshot) + CSV)
    assert shown == render(load_state(store, head))[CSV].data


@pytest.mark.thorough
def test_the_verbs_tell_of_other_view_versions_in_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database(open_store(str(tmp_path)))
    assert verify_command(root=str(tmp_path)) == 0
    note, result = capsys.readouterr().out.splitlines()
    assert names(note, "2 versions") and names(result, "3 versions")
    log_command(root=str(tmp_path))
    assert "view_version" not in capsys.readouterr().out
