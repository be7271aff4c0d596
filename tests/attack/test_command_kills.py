"""`db gc`, `db promote` and `db verify --mend`, killed at their first call of the store and after
each one that writes: no reader sees something half done, and the next run completes."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from collector.codec.errors import BadInput
from collector.database import delta
from collector.database.channels import Promotion, channels, commit_of, promotions, record_promotion
from collector.database.cleanup import garbage
from collector.database.commits import history, read_commit
from collector.database.merge import CREATE, merge_plans
from collector.database.retired import retired_versions
from collector.database.verify import find_problems
from collector.model import keys
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from jobs.cli import opening
from tests.attack.merge_rounds import check_objects
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.merge_kills import READS
from tests.unit.collector.database.wrapped_stores import CountingStore, Killed, kill_command
from tests.unit.jobs.cli.in_process import opmeter_here

_VERSIONS = 4
_GC = ("db", "gc", "--keep", "2", "--keep-promoted", "1", "--delete")
_PROMOTE = ("db", "promote", "stable", "--version", "4", "--force", "made")


@pytest.fixture(scope="module")
def prepared() -> MemoryStore:
    """Four versions, a channel at the second, and what a merge of another plan left that was killed
    when its snapshot was written."""
    store = MemoryStore()
    for number in range(1, _VERSIONS + 1):
        _write_plan(store, "made", number)
        if number == 1:
            _write_plan(store, "other", number)
            calls = _calls(store, lambda wrapped: _merge(wrapped, "other", 1))
            commit_at = [verb for verb, _ in calls].index("create") + 1
            with suppress(Killed):
                killed = CountingStore(store, kill_at=commit_at, kill=kill_command)
                _merge(killed, "other", number)
        _merge(store, "made", number)
    sha256 = read_commit(store, 2).sha256
    assert record_promotion(
        store, Promotion("stable", 1, 2, sha256, {"verify": "made"}, "", "test", "")
    )
    return store


def _write_plan(store: Store, campaign: str, number: int) -> None:
    records = [add_record(number + len(campaign))]
    shard = MadeShard(f"shard-{number}", records, [answered(records, 5.0)])
    write_campaign(store, MadePlan([shard], campaign, number, head_commit=number - 1))


def _merge(store: Store, campaign: str, number: int) -> None:
    merge_plans(store, [(campaign, number)], guard=CREATE, author="test")


def _copy(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for info in store.list(""):
        copy.put(info.key, store.get(info.key))
    return copy


def _calls(store: MemoryStore, run: Callable[[Store], object]) -> list[tuple[str, str]]:
    counting = CountingStore(_copy(store))
    run(counting)
    return counting.calls


def check_readers(store: Store, stable: set[int]) -> None:
    """Every version that is not retired is whole, and so is the one that the channel names."""
    retired = retired_versions(store)
    commits = list(history(store))
    assert [commit.number for commit in commits] == [*range(_VERSIONS, 0, -1)]
    for commit in commits:
        if commit.number not in retired:
            check_objects(store, commit)
    assert channels(store) == ["stable"] and commit_of(store, "stable").number in stable
    assert not retired & stable


def check_kills(
    prepared: MemoryStore, patch: pytest.MonkeyPatch, words: tuple[str, ...], stable: set[int]
) -> tuple[list[tuple[str, str]], list[MemoryStore]]:
    """Kill a command at each place, and run it again. Return its calls, and the stores."""

    def command(store: Store) -> None:
        patch.setattr(opening, "open_store", lambda url, location="": store)
        ended = opmeter_here(*words)
        assert (ended.returncode, ended.stderr) == (0, ""), ended

    calls = _calls(prepared, command)
    writes = [at for at, (verb, _) in enumerate(calls, 1) if verb not in READS]
    assert writes
    stores = []
    for at, after in ((1, False), *((at, True) for at in writes)):
        store = _copy(prepared)
        with pytest.raises(Killed):
            command(CountingStore(store, kill_at=at, after=after, kill=kill_command))
        check_readers(store, stable)
        command(store)
        check_readers(store, stable)
        assert find_problems(store) == []
        stores.append(store)
    return calls, stores


def test_killed_gc_is_completed_by_the_next(prepared, monkeypatch):
    assert garbage(prepared)
    calls, stores = check_kills(prepared, monkeypatch, _GC, {2})
    assert {verb for verb, _ in calls} == {"get", "list", "create", "delete"}
    for store in stores:
        assert garbage(store) == [] and retired_versions(store) == {1}
        with pytest.raises(BadInput, match="retired"):
            opening.chosen_commit(store, "made", 1)


def test_killed_promotion_is_completed_by_the_next(prepared, monkeypatch):
    _, stores = check_kills(prepared, monkeypatch, _PROMOTE, {2, 4})
    for store in stores:
        assert commit_of(store, "stable").number == 4
        assert [one.commit for one in promotions(store, "stable")] in ([2, 4], [2, 4, 4])
        back = ("db", "promote", "stable", "--back")
        monkeypatch.setattr(opening, "open_store", lambda url, location="", it=store: it)
        assert opmeter_here(*back).returncode == 0 and commit_of(store, "stable").number == 2


def test_killed_mending_is_completed_by_the_next(prepared, monkeypatch):
    broken = _copy(prepared)
    for key in [info.key for info in broken.list(keys.DATABASE) if "/_delta_log/" in info.key]:
        broken.delete(key)
    _, stores = check_kills(broken, monkeypatch, ("db", "verify", "--mend"), {2})
    commits = [*history(prepared)][::-1]
    for store in stores:
        assert delta.mend(store, commits) == ()
