"""The rule for changing the view: versions of another view version are checked without rendering
them, and the next merge renders them again."""

from pathlib import Path
from typing import Any

import pytest

from collector.codec.canonical import sha256_hex
from collector.database.commits import (
    find_head,
    read_commit,
    write_hint,
)
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.verify import find_problems, of_other_view_versions
from collector.database.view import (
    VIEW_VERSION,
    content_hash_of,
    content_hash_of_version,
    digest_of_rows,
    render,
    view_of,
)
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
from tests.unit.collector.database.forging import forge_manifest, forge_version, head_of, tree_key
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast
CSV = f"{PATH}/Add.csv"


def publish(store: Store, number: int) -> None:
    records = [add_record(n) for n in range(number, number + 2)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 10.0 * number)])
    plan = MadePlan([shard], number=number, head_commit=number - 1)
    write_campaign(store, plan)
    merge_plans(store, [plan.name], guard=CREATE, author="test")


def shown_by_an_older_program(store: Store, *, version: int = VIEW_VERSION + 1) -> None:
    """Rewrite the newest commit as one with another spelling of its numbers and right hashes."""
    commit = head_of(store)
    state = load_state(store, commit)
    key = tree_key(store, commit, CSV)
    data = store.get(key).replace(b".000000", b".00")
    assert data != render(state)[CSV].data
    store.put(key, data)
    (stack,) = state.versions.values()
    intervals = view_of(state).intervals

    def change(files: dict[str, Any]) -> None:
        files["tree"][CSV] |= {"sha256": sha256_hex(data), "size_bytes": len(data)}
        files["view_version"] = version
        hashes = {path: file["sha256"] for path, file in files["tree"].items()}
        files["content_hash"] = content_hash_of_version(
            digest_of_rows(state.measurements), stack, hashes, intervals
        )

    forge_version(store, commit, change)

    def seal(manifest: dict[str, Any]) -> None:
        named = {path: entry["content_hash"] for path, entry in manifest["versions"].items()}
        manifest["content_hash"] = content_hash_of(named, {})

    forge_manifest(store, read_commit(store, commit.number), seal, view_version=version)
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
def test_csvs_of_an_older_view_version_are_not_a_problem(store: MemoryStore) -> None:
    assert [read_commit(store, n).view_version for n in (1, 2, 3)] == [
        *[VIEW_VERSION + 1] * 2,
        VIEW_VERSION,
    ]
    assert find_problems(store) == [] and of_other_view_versions(store) == 2
    newest = [read_commit(store, 3)]
    assert find_problems(store, newest) == [] and of_other_view_versions(store, newest) == 0


def test_csvs_of_a_later_view_version_are_not_a_problem() -> None:
    store = MemoryStore()
    publish(store, 1)
    shown_by_an_older_program(store, version=VIEW_VERSION + 1)
    assert find_problems(store) == [] and of_other_view_versions(store) == 1


def test_changed_csv_of_the_current_view_version_is_reported() -> None:
    store = MemoryStore()
    publish(store, 1)
    shown_by_an_older_program(store, version=VIEW_VERSION)
    assert any(problem.key.endswith("/Add.csv") for problem in find_problems(store))
    assert of_other_view_versions(store) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("number", [1, 2, 3])
def test_damaged_csv_is_reported_for_any_view_version(store: MemoryStore, number: int) -> None:
    key = keys.snapshot(read_commit(store, number).snapshot) + CSV
    store.put(key, store.get(key)[:-1])
    [problem] = find_problems(store)
    assert (problem.commit, problem.key) == (number, key)


def test_wrong_content_hash_is_reported_for_any_view_version() -> None:
    store = MemoryStore()
    publish(store, 1)
    commit = read_commit(store, 1)
    forge_manifest(
        *(store, commit, lambda manifest: manifest.update(content_hash="0" * 64)),
        view_version=VIEW_VERSION + 1,
    )
    store.delete(keys.HEAD)
    [problem] = find_problems(store)
    assert problem.key == keys.commit(1) and names(problem.text, "0" * 64)


@pytest.mark.thorough
def test_new_view_version_makes_no_commit_but_the_next_merge_renders_everything() -> None:
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
def test_commands_report_other_view_versions_in_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database(open_store(str(tmp_path)))
    assert verify_command(root=str(tmp_path)) == 0
    note, result = capsys.readouterr().out.splitlines()
    assert names(note, "2 versions") and names(result, "3 versions")
    log_command(root=str(tmp_path))
    assert "view_version" not in capsys.readouterr().out
