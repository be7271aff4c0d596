"""A merge that is killed at any call of its store, and run again, ends as if nothing had been."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.database.commits import find_head, history
from collector.database.merge import CREATE, merge
from collector.database.snapshot import load_state
from collector.database.verify import verify
from collector.store import open_store
from collector.store.base import Store
from collector.store.memory import MemoryStore
from tests.servers.versitygw import NoServer, Versitygw
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)
from tests.unit.collector.database.merge_process import MergeOrder, MergeProcesses
from tests.unit.collector.database.wrapped_stores import CountingStore

RECORDS = [add_record(rows) for rows in range(1, 4)]
MUL = [record_of_shapes("Mul", "2,2;2,2", "2,2")]
PLANS = [("made", 2), ("made", 3)]


@dataclass(frozen=True)
class Place:
    """Where databases can be made, each by a name."""

    url: Callable[[str], str]

    def filled(self, name: str, prepared: Store) -> str:
        """The address of a new copy of a prepared database."""
        url = self.url(name)
        store = open_store(url)
        for info in prepared.list(""):
            store.put(info.key, prepared.get(info.key))
        return url


def prepare() -> Store:
    """One commit, and two plans that nobody has merged yet."""
    store = MemoryStore()
    write_campaign(store, MadePlan([MadeShard("one", RECORDS, [answered(RECORDS, 5.0)])]))
    merge(store, [("made", 1)], guard=CREATE, author="test")
    failed = {RECORDS[0].case_id: Tried()}
    later = [MadeShard("two", RECORDS, [answered(RECORDS, 4.0), failed])]
    write_campaign(store, MadePlan(later, number=2, head_commit=1, op_mapping="a: 1\n"))
    write_campaign(store, MadePlan([MadeShard("mul", MUL, [answered(MUL, 3.0)])], number=3))
    return store


@pytest.fixture
def file_place(tmp_path: Path) -> Place:
    return Place(lambda name: (tmp_path / name).as_uri())


@pytest.fixture
def s3_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    server = Versitygw(tmp_path)
    try:
        server.start()
    except NoServer as error:
        pytest.skip(str(error))
    try:
        server.make_bucket("merges")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Place(lambda name: f"s3://merges/{name}?endpoint={server.endpoint}")
    finally:
        server.stop()


@pytest.fixture
def merges() -> Iterator[MergeProcesses]:
    with MergeProcesses() as processes:
        yield processes


def undisturbed() -> tuple[str, list[tuple[str, str]]]:
    """The content that the merge leads to, and the calls of the store that it takes."""
    store = CountingStore(prepare())
    head = merge(store, PLANS, guard=CREATE, author="test").head
    assert head is not None
    return head.content_hash, store.calls


def check_kills(place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, calls = undisturbed()
    with capsys.disabled():
        print(f" a merge of N = {len(calls)} store calls, killed before and after each", end="")
    prepared = prepare()
    for at in range(1, len(calls) + 1):
        for after in (False, True):
            url = place.filled(f"{at}-{after}", prepared)
            [status] = merges.run([MergeOrder(url, PLANS, kill_at=at, after=after)])
            assert status == -signal.SIGKILL
            store = open_store(url)
            merge(store, PLANS, guard=CREATE, author="again")
            head = find_head(store)
            assert head is not None and (head.number, head.content_hash) == (2, wanted)
            assert verify(store) == []


def check_two_at_once(place: Place, merges: MergeProcesses) -> None:
    wanted, _ = undisturbed()
    url = place.filled("two", prepare())
    assert merges.run([MergeOrder(url, [plan]) for plan in PLANS]) == [0, 0]
    store = open_store(url)
    assert [commit.number for commit in history(store)] == [3, 2, 1]
    head = find_head(store)
    assert head is not None and head.content_hash == wanted
    assert {plan.number for plan in load_state(store, head).plans} == {1, 2, 3}
    assert verify(store) == []


@pytest.mark.slow
def test_a_killed_merge_is_made_good_in_a_folder(
    file_place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    check_kills(file_place, merges, capsys)


def test_two_processes_at_once_lose_nothing_in_a_folder(
    file_place: Place, merges: MergeProcesses
) -> None:
    check_two_at_once(file_place, merges)


@pytest.mark.slow
@pytest.mark.server
def test_a_killed_merge_is_made_good_on_a_real_server(
    s3_place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    check_kills(s3_place, merges, capsys)


@pytest.mark.server
def test_two_processes_at_once_lose_nothing_on_a_real_server(
    s3_place: Place, merges: MergeProcesses
) -> None:
    check_two_at_once(s3_place, merges)
