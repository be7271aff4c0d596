"""Rounds of two merges, `db verify`, `db gc` and a reader at once, each killed at random.

`db gc` also retires all but the newest versions, and the one that a channel points at.
The reader uses opmeter, pyarrow and deltalake. `python -m tests.attack.merge_rounds` starts the
processes of a round.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from collector.database import cleanup, delta
from collector.database.channels import Promotion, promotions, record_promotion
from collector.database.commits import Commit, find_head, history, read_commit
from collector.database.manifest import own_files, read_file, read_manifest, read_version_files
from collector.database.merge import CREATE, merge_plans
from collector.database.retired import (
    Retirement,
    retirable,
    retire,
    retired_versions,
    retirements,
)
from collector.database.verify import find_problems
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.merge_process import MergeProcesses, serve
from tests.unit.collector.database.wrapped_stores import WrappedStore

T = TypeVar("T")
CHECKPOINT_EVERY = 4  # so that a short log has some
ROUNDS_OF_A_DATABASE = 12  # then the next one begins: the cost of a round grows with the log
TABLES = {"measurements": keys.MEASUREMENTS, "shown": keys.SHOWN}
KEPT = 5  # more than the commits of a round, so that what was not compared yet is kept
_QUIET_S = 2.0  # without a commit, after which merges next to a gc have ended
STACKS = ("2.12.0", "2.13.0", "2.14.0")
KILLED = -signal.SIGALRM


@dataclass(frozen=True)
class Order:
    """One process: `kind` is merge, verify, gc or read. It is killed `delay_s` after its call
    number `kill_at` of the store began; never if that is 0. A gc that is not killed ends when no
    merge has committed for a while."""

    url: str
    kind: str
    plans: Sequence[tuple[str, int]] = ()
    kill_at: int = 0
    delay_s: float = 0.0


class KilledStore(WrappedStore):
    """Ends its process as SIGKILL does, `delay_s` after call number `kill_at` began."""

    def __init__(self, store: Store, kill_at: int, delay_s: float):
        super().__init__(store)
        self._left, self._delay_s = kill_at, delay_s

    def _call(self, verb: str, key: str, call: Callable[[], T]) -> T:
        self._left -= 1
        if self._left == 0:  # SIGALRM without a handler ends all threads in the kernel
            signal.setitimer(signal.ITIMER_REAL, max(self._delay_s, 1e-6))
        return call()


def run_order(
    url: str, kind: str, plans: Sequence[Sequence[Any]], kill_at: int, delay_s: float
) -> None:
    """Execute an order in this process."""
    delta.CHECKPOINT_EVERY = CHECKPOINT_EVERY
    store = KilledStore(open_store(url), kill_at, delay_s)
    if kind == "merge":
        chosen = [(campaign, number) for campaign, number in plans]
        merge_plans(store, chosen, guard=CREATE, author="process")
    elif kind == "verify":
        problems = find_problems(store)
        assert problems == [], problems
        delta.mend(store, [*history(store)][::-1])
    elif kind == "gc":
        _collect_next_to_merges(store, is_killed=kill_at > 0)
    else:
        while find_head(store) is not None:  # until it is killed
            _read_newest(store, url)


def _collect_next_to_merges(store: Store, *, is_killed: bool) -> None:
    """Collect again and again: until it is killed, or until the merges have ended."""
    newest, seen_s = None, time.monotonic()
    while is_killed or time.monotonic() - seen_s < _QUIET_S:
        _collect(store)
        head = find_head(store)
        if head != newest:
            newest, seen_s = head, time.monotonic()


def _collect(store: Store) -> int:
    if versions := retirable(store, KEPT, 1):
        number = len(retirements(store)) + 1
        retire(store, Retirement(number, versions, KEPT, 1, "process", ""))
    found = cleanup.garbage(store)
    for info in found:
        store.delete(info.key)
    return len(found)


def _read_newest(store: Store, url: str) -> None:
    """Read the newest version, one before it, and the Delta tables."""
    if (head := find_head(store)) is not None:
        check_objects(store, head)
        check_objects(store, read_commit(store, max(1, head.number - 2)))
        for name in TABLES:
            if (table := open_table(url, name)) is not None:
                check_rows(store, table, name)


def check_objects(store: Store, commit: Commit) -> None:
    """Read all that a commit names. Raises BadInput for an object that is missing or differs."""
    for path, entry in read_manifest(store, commit).versions.items():
        for file in own_files(path, entry, read_version_files(store, commit, path, entry)):
            read_file(store, file)


def open_table(url: str, name: str, version: int | None = None) -> deltalake.DeltaTable | None:
    """Open the Delta table of a database; None if it has no log yet."""
    plain, _, query = url.partition("?")
    endpoint = parse_qs(query).get("endpoint", [""])[0]
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"} if endpoint else None
    address = f"{plain}/db/{name}" if endpoint else f"{urlsplit(plain).path}/db/{name}"
    if not deltalake.DeltaTable.is_deltatable(address, options):
        return None
    return deltalake.DeltaTable(address, version=version, storage_options=options)


def check_rows(store: Store, table: deltalake.DeltaTable, name: str) -> None:
    """Compare the rows of a table with those that the commit of its version names."""
    number = table.version()
    expected = _rows(_files(store, read_commit(store, number), TABLES[name])) if number else []
    found = sorted(map(repr, table.to_pyarrow_table().to_pylist()))
    assert found == expected, f"{name}, version {number}: other rows than those of the commit"


def _files(store: Store, commit: Commit, root: str) -> Iterable[bytes]:
    for path, entry in read_manifest(store, commit).versions.items():
        for file in own_files(path, entry, read_version_files(store, commit, path, entry)):
            if file.key.startswith(root):
                yield read_file(store, file)


def _rows(files: Iterable[bytes]) -> list[str]:
    tables = (pq.read_table(pa.BufferReader(data)) for data in files)
    return sorted(repr(row) for table in tables for row in table.to_pylist())


@dataclass
class MergeRounds:
    """Rounds in one database. `outcomes` counts how the processes of each kind ended."""

    url: str
    processes: MergeProcesses
    random: Random
    outcomes: Counter[tuple[str, str]]
    plans: list[MadePlan] = field(default_factory=list)
    unmerged: list[tuple[str, int]] = field(default_factory=list)
    checked: int = 0  # the newest commit whose rows were compared

    def __post_init__(self) -> None:
        self.store = open_store(self.url)

    def one(self) -> None:
        """Run a round, and check the database before and after the next merge completes it."""
        new = [self._new_plan() for _ in range(2)]
        orders = self._orders(new)
        statuses = self.processes.run(orders)
        for order, status in zip(orders, statuses, strict=True):
            assert status in (0, KILLED), f"{order.kind} failed, its error is above"
            self.outcomes[order.kind, "killed" if status else "ended"] += 1
        self._check_as_left()
        self._complete(new)
        self._check_as_completed()
        if self.random.random() < 0.3:
            self._promote()

    def _promote(self) -> None:
        number = len(promotions(self.store, "stable")) + 1
        sha256 = read_commit(self.store, self.checked).sha256
        made = Promotion("stable", number, self.checked, sha256, {}, "", "test", "")
        assert record_promotion(self.store, made)

    def _new_plan(self) -> tuple[str, int]:
        draw, number = self.random, len(self.plans) + 1
        records = [add_record(rows) for rows in draw.sample(range(1, 8), 3)]
        session = answered(records, draw.uniform(5.0, 9.0))
        if draw.random() < 0.3:
            session[records[0].case_id] = Tried()
        stack = replace(STACK, torch=draw.choice(STACKS))
        shard = MadeShard(f"shard-{number}", records, [session])
        made = MadePlan([shard], number=number, head_commit=self.checked, stack=stack)
        write_campaign(self.store, made)
        self.plans.append(made)
        return made.name

    def _orders(self, new: Sequence[tuple[str, int]]) -> list[Order]:
        first, second = new
        share = [first] if self.random.random() < 0.5 else []  # both may merge the same plan
        kinds = (
            ("merge", [*self.unmerged, first], 90),
            ("merge", [*share, second], 90),
            ("verify", [], 30 + 25 * self.checked),
            ("gc", [], 200 + 50 * self.checked),
            ("read", [], 30 + 25 * self.checked),
        )
        orders = []
        for kind, plans, calls in kinds:
            is_killed = kind == "read" or self.random.random() < 0.8
            if kind == "gc":  # in every second round
                is_killed = len(self.plans) % 4 == 0
            kill_at = self.random.randint(1, calls) if is_killed else 0
            delay_s = self.random.uniform(0.0, 0.05 if kind == "read" else 0.005)
            orders.append(Order(self.url, kind, plans, kill_at, delay_s))
        return orders

    def _check_as_left(self) -> None:
        head = find_head(self.store)
        if head is None:
            return
        retired = retired_versions(self.store)
        if promoted := promotions(self.store, "stable"):
            assert promoted[-1].commit not in retired
            check_objects(self.store, read_commit(self.store, promoted[-1].commit))
        commits = [read_commit(self.store, n) for n in range(self.checked + 1, head.number + 1)]
        assert find_problems(self.store, commits) == []
        for name in TABLES:
            table = open_table(self.url, name)
            if table is not None:
                assert table.version() <= head.number
                check_rows(self.store, table, name)

    def _complete(self, new: Sequence[tuple[str, int]]) -> None:
        """Complete the logs by another merge of all plans, or by `db verify`, which leaves plans
        for the next round."""
        plans = [*self.unmerged, *new]
        head = find_head(self.store)
        if head is not None and self.random.random() < 0.3:
            delta.mend(self.store, [*history(self.store)][::-1])
            merged = {(p.campaign, p.number) for p in read_manifest(self.store, head).plans}
            self.unmerged = [plan for plan in plans if plan not in merged]
            return
        merge_plans(self.store, plans, guard=CREATE, author="completing")
        self.unmerged = []

    def _check_as_completed(self) -> None:
        head = find_head(self.store)
        assert head is not None
        for name in TABLES:
            newest = open_table(self.url, name)
            assert newest is not None and newest.version() == head.number
            for number in range(self.checked + 1, head.number + 1):
                table = open_table(self.url, name, number)
                assert table is not None
                check_rows(self.store, table, name)
        self.checked = head.number

    def end(self) -> None:
        """Check that nothing was lost: the content is that of one merge of all plans."""
        merge_plans(self.store, [*self.unmerged], guard=CREATE, author="ending")
        once = MemoryStore()
        for made in self.plans:
            write_campaign(once, made)
        merged = merge_plans(once, [made.name for made in self.plans], guard=CREATE, author="once")
        head = find_head(self.store)
        assert head is not None and merged.head is not None
        assert head.content_hash == merged.head.content_hash
        self.outcomes["object of garbage", "left"] += _collect(self.store)
        self.outcomes["version", "retired"] += len(retired_versions(self.store))
        assert cleanup.garbage(self.store) == [] and find_problems(self.store) == []
        assert delta.mend(self.store, [*history(self.store)][::-1]) == ()


if __name__ == "__main__":
    serve(run_order)
