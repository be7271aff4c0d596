"""A merge that is killed at its first call of the store, or after any that writes, and run again,
gives the same as an undisturbed one; two concurrent merges lose nothing."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from collector.database.commits import find_head, history
from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.store import open_store
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
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
READS = ("get", "list")  # calls that do not change a store


@dataclass(frozen=True)
class Place:
    """A location for databases, each with a name."""

    url: Callable[[str], str]

    def filled(self, name: str, prepared: Store) -> tuple[str, Store]:
        """Return a new copy of a prepared database, and its address."""
        url = self.url(name)
        store = open_store(url)
        for info in prepared.list(""):
            store.put(info.key, prepared.get(info.key))
        return url, store


def prepare() -> Store:
    """Return one commit, and two unmerged plans."""
    store = MemoryStore()
    write_campaign(store, MadePlan([MadeShard("one", RECORDS, [answered(RECORDS, 5.0)])]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    failed = {RECORDS[0].case_id: Tried()}
    later = [MadeShard("two", RECORDS, [answered(RECORDS, 4.0), failed])]
    write_campaign(store, MadePlan(later, number=2, head_commit=1, op_mapping="a: 1\n"))
    write_campaign(store, MadePlan([MadeShard("mul", MUL, [answered(MUL, 3.0)])], number=3))
    return store


def undisturbed() -> tuple[str, list[tuple[str, str]]]:
    """Return the content after the merge, and its number of store calls."""
    store = CountingStore(prepare())
    head = merge_plans(store, PLANS, guard=CREATE, author="test").head
    assert head is not None
    return head.content_hash, store.calls


def check_kills(place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]) -> None:
    expected, calls = undisturbed()
    with capsys.disabled():
        print(f" a merge of N = {len(calls)} store calls, killed after each that writes", end="")
    prepared = prepare()
    # The state after a write is the same until the next write, whatever is read in between.
    writes = [at for at, (verb, _) in enumerate(calls, 1) if verb not in READS]
    for at, after in ((1, False), *((at, True) for at in writes)):
        url, store = place.filled(f"{at}-{after}", prepared)
        [status] = merges.run([MergeOrder(url, PLANS, kill_at=at, after=after)])
        assert status == -signal.SIGKILL
        merge_plans(store, PLANS, guard=CREATE, author="again")
        head = find_head(store)
        assert head is not None and (head.number, head.content_hash) == (2, expected)
        assert find_problems(store) == []


def check_two_at_once(place: Place, merges: MergeProcesses) -> None:
    expected, _ = undisturbed()
    url, store = place.filled("two", prepare())
    assert merges.run([MergeOrder(url, [plan]) for plan in PLANS]) == [0, 0]
    assert [commit.number for commit in history(store)] == [3, 2, 1]
    head = find_head(store)
    assert head is not None and head.content_hash == expected
    assert {plan.number for plan in load_state(store, head).plans} == {1, 2, 3}
    assert find_problems(store) == []
