"""Retired versions lose the files that only they name; everything else stays readable."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

import opmeter
from collector.codec import canonical
from collector.codec.errors import BadInput, DamagedObject
from collector.database import cleanup, delta
from collector.database.channels import Promotion, record_promotion
from collector.database.commits import find_head, history, read_commit
from collector.database.manifest import (
    own_files,
    read_file,
    read_manifest,
    read_version_files,
    tree_files,
)
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import pull_version
from collector.database.retired import (
    Retirement,
    check_is_kept,
    retirable,
    retire,
    retired_versions,
)
from collector.database.reuse import Reuse, store_reuse
from collector.database.verify import find_problems, find_strays
from collector.model import keys
from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.wrapped_stores import WrappedStore

T = TypeVar("T")


def merge_one(store: Store, number: int) -> None:
    """Merge a plan into the first directory, or, if the number is odd, into a second one."""
    records = [add_record(number % 5 + rows) for rows in range(1, 3)]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 5.0 + number % 7)])
    stack = replace(STACK, torch="2.14.0") if number % 2 else STACK
    made = MadePlan([shard], number=number, head_commit=number - 1, stack=stack)
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")


def promote(store: Store, channel: str, number: int, version: int) -> None:
    sha256 = read_commit(store, version).sha256
    assert record_promotion(store, Promotion(channel, number, version, sha256, {}, "", "test", ""))


def retire_all_but(store: Store, newest: int, promoted: int = 1, number: int = 1) -> set[str]:
    """Retire, delete what can be deleted, and return its keys."""
    versions = retirable(store, newest, promoted)
    listed = {info.key for info in cleanup.garbage(store, versions)}
    retire(store, Retirement(number, versions, newest, promoted, "test", "now"))
    found = {info.key for info in cleanup.garbage(store)}
    assert found == listed  # the dry run lists what is deleted
    for key in found:
        store.delete(key)
    return found


def read_all(store: Store, version: int) -> dict[str, bytes]:
    """Return all that a version names."""
    commit = read_commit(store, version)
    manifest = read_manifest(store, commit)
    files = list(tree_files(store, commit, manifest).values())
    for path, entry in manifest.versions.items():
        files += own_files(path, entry, read_version_files(store, commit, path, entry))
    return {file.key: read_file(store, file) for file in files}


def test_retired_versions_lose_only_what_no_other_version_names(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    for number in range(1, 7):
        merge_one(store, number)
    promote(store, "stable", 1, 1)
    promote(store, "stable", 2, 3)
    assert retirable(store, 2, 2) == (2, 4) and retirable(store, 2, 1) == (1, 2, 4)
    assert retirable(store, 6, 1) == ()
    for newest, promoted in ((1, 1), (2, 0)):
        with pytest.raises(BadInput, match="versions to keep"):
            retirable(store, newest, promoted)
    before = {version: read_all(store, version) for version in (3, 5, 6)}
    everything = {info.key for info in store.list("db/")}
    opened = opmeter.open(tmp_path / "store", number=4)
    deleted = retire_all_but(store, 2)
    first, second = opened.directories  # the second is that of version 3
    assert opened.directory(second).index.rows > 0
    with pytest.raises(BadInput, match="version 4 is retired"):
        opened.directory(first)
    assert deleted and not any(key.startswith((keys.MEASUREMENTS, keys.COMMITS)) for key in deleted)
    # Version 3 shows the second directory as version 3 wrote it, and the first as version 2 did.
    assert {key for key in deleted if "/00000002-" in key} == set()
    assert any("/00000001-" in key for key in deleted)
    assert {version: read_all(store, version) for version in (3, 5, 6)} == before
    assert {info.key for info in store.list("db/")} == everything - deleted | {keys.retirement(1)}
    assert find_problems(store) == [] and find_strays(store) == []
    assert delta.mend(store, [*history(store)][::-1]) == ()
    pull_version(store, read_commit(store, 3), tmp_path / "tree")
    assert opmeter.open(tmp_path / "store", channel="stable").number == 3
    for version in (1, 2, 4):
        with pytest.raises(BadInput, match=f"version {version} is retired"):
            opmeter.open(tmp_path / "store", number=version)
    merge_one(store, 7)
    assert cleanup.garbage(store) == [] and find_problems(store) == []
    promote(store, "stable", 3, 7)
    assert any("/00000003-" in key for key in retire_all_but(store, 2, number=2))
    assert find_problems(store) == []


def test_verify_still_checks_measurements_of_retired_versions_and_all_of_the_others() -> None:
    store = MemoryStore()
    for number in (2, 4, 6):
        merge_one(store, number)
    retire_all_but(store, 2)
    commit = read_commit(store, 2)
    ((path, entry),) = read_manifest(store, commit).versions.items()
    first = min(read_version_files(store, commit, path, entry).measurements)
    lost = {keys.measurements(path, first), keys.shown(path, entry.snapshot)}
    for key in lost:
        store.delete(key)
    found = find_problems(store)
    assert {problem.key for problem in found} == lost and found[0].commit == 1


def test_versions_of_reused_cases_are_kept() -> None:
    store = MemoryStore()
    for number in (2, 4, 6, 8):
        merge_one(store, number)
    (path,) = read_manifest(store, read_commit(store, 1)).versions
    store_reuse(
        store,
        Reuse("made", 1, 1, path, "new", path, "old", 0.05, kernels=()),
    )
    assert retirable(store, 2, 1) == (2,)


def test_records_that_retire_required_versions_are_problems() -> None:
    def problems(*records: Retirement, damaged: str = "") -> list[str]:
        store = MemoryStore()
        for number in (2, 4, 6):
            merge_one(store, number)
        promote(store, "stable", 1, 1)
        for one in records:
            data = canonical.readable_json(
                {name: getattr(one, name) for name in Retirement.__slots__}
            )
            store.put(keys.retirement(one.number), data)
        if damaged:
            store.put(damaged, b"{}")
        return [problem.text for problem in find_problems(store)]

    assert problems(Retirement(1, (2,), 2, 1, "", "")) == []
    for version, why in ((3, "the newest"), (1, "channel stable")):
        (found,) = problems(Retirement(1, (version,), 2, 1, "", ""))
        assert found.startswith(f"{keys.retirement(1)}: retires version {version}") and why in found
    other = keys.promotion("other", 1)
    (found,) = problems(Retirement(1, (2,), 2, 1, "", ""), damaged=other)
    assert found.startswith(f"{other}: ")
    (found,) = problems(Retirement(2, (2,), 2, 1, "", ""))
    assert found.startswith(f"{keys.retirement(1)}: missing")


class BetweenCalls(WrappedStore):
    """Does something else before the first read of a key that contains `text`."""

    def __init__(self, store: Store, text: str, action: Callable[[], object]):
        super().__init__(store)
        self._text, self._action = text, [action]

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        if self._text in key and self._action:
            self._action.pop()()
        return call()


def test_a_version_promoted_while_it_is_retired_keeps_its_files() -> None:
    store = MemoryStore()
    for number in (2, 4, 6, 8):
        merge_one(store, number)
    retire(store, Retirement(1, retirable(store, 2, 1), 2, 1, "test", "now"))
    promote(store, "stable", 1, 1)
    assert not any("/00000001-" in info.key for info in cleanup.garbage(store))
    assert any("/00000002-" in info.key for info in cleanup.garbage(store))
    with pytest.raises(BadInput, match="another process retired"):
        retire(store, Retirement(1, (2,), 2, 1, "test", "now"))


def test_a_merge_begins_again_if_its_base_is_retired_meanwhile() -> None:
    store = MemoryStore()
    merge_one(store, 2)

    def overtake() -> None:
        for number in (4, 6):
            merge_one(store, number)
        retire_all_but(store, 2)

    records = [add_record(9)]
    shard = MadeShard("shard-8", records, [answered(records, 5.0)])
    made = MadePlan([shard], number=8, head_commit=1)
    write_campaign(store, made)
    between = BetweenCalls(store, keys.SHOWN, overtake)
    merge_plans(between, [made.name], guard=CREATE, author="test", sleep=lambda _: None)
    head = find_head(store)
    assert head is not None and head.number == 4 and retired_versions(store) == {1}
    assert find_problems(store) == []
    head_of_damaged = MemoryStore()
    merge_one(head_of_damaged, 2)
    write_campaign(head_of_damaged, made)
    (shown,) = [info.key for info in head_of_damaged.list(f"{keys.SHOWN}device")]
    head_of_damaged.delete(shown)
    with pytest.raises(DamagedObject):  # damage, which is not tried again
        merge_plans(head_of_damaged, [made.name], guard=CREATE, author="test")


def test_verify_repeats_if_versions_are_retired_while_it_reads() -> None:
    store = MemoryStore()
    for number in (2, 4, 6):
        merge_one(store, number)
    between = BetweenCalls(store, f"{keys.SHOWN}device", lambda: retire_all_but(store, 2))
    assert find_problems(between) == []
    with pytest.raises(BadInput, match="version 1 is retired"):
        check_is_kept(store, 1)
