"""What planning and following want to know of the database's head, without holding the database.

Of each file of measurements only the columns that answer are read, a batch at a time, so that what
is held grows with what is asked for: a database of a million measurements is larger in memory than
a controller may be.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.codec.errors import BadInput, DamagedObject
from collector.database.canaries import (
    CANARY_COLUMNS,
    Doubts,
    canary_rows,
    doubts_of,
    factors_of,
    is_of_doubtful_session,
    with_doubts,
)
from collector.database.commits import Commit
from collector.database.committed import read_sealed
from collector.database.layout import (
    AVERAGE_DURATION,
    SESSIONS,
    STACK_INTERVAL,
    is_kernel_file_name,
)
from collector.database.plans import MergedPlan
from collector.database.query import (
    ANSWERING,
    Answered,
    answers_of,
    best_of,
    best_of_cases,
    of_stack,
)
from collector.database.rows import completed
from collector.database.snapshot import SnapshotManifest, read_file, read_manifest
from collector.database.state import TEXT, Version, shows
from collector.model import keys
from collector.model.case import case_from_cells
from collector.model.plan import place_name
from collector.model.row import ABSENT
from collector.model.stack import Stack
from collector.store.base import Store

_BATCH_ROWS = 16_384
_PLACE = ("node", "device_serial")
_KEPT = (
    *("case", "outcome", "reason", "mean_us", "good", "warm", "clean"),
    *("head_commit", "plan", "plan_hash", "measurement", "warnings"),
)


@dataclass(frozen=True, slots=True)
class Published:
    """The head of a database; without a commit an empty one."""

    store: Store
    commit: Commit | None
    manifest: SnapshotManifest | None

    @classmethod
    def of(cls, store: Store, commit: Commit | None) -> "Published":
        """What a commit of the store's database published; the manifest is all that is read."""
        return cls(store, commit, read_manifest(store, commit) if commit else None)

    @property
    def versions(self) -> Mapping[str, Version]:
        """What each version directory stands for, without the text of its op_mapping."""
        return self.manifest.versions if self.manifest else {}

    def shows(self, stack: Stack) -> bool:
        """Whether the version directory of a stack is there and shows this very stack."""
        return shows(self.versions, stack)

    def answers(
        self, version_path: str, wanted: Iterable[str], *, cache: str | None = None
    ) -> dict[str, Answered]:
        """How each wanted case of a version directory is answered, as `query.answers` says it, but
        for curves that are held back: those take all cases to see."""
        if self.manifest is None or version_path not in self.versions:
            return {}
        version, cases = self.versions[version_path], pa.array(wanted, TEXT)
        doubts = self._doubts(version, version_path, self.manifest.measurements)
        best: list[pa.Table] = []
        for key in self.manifest.measurements:
            found = list(best)
            for rows in _batches(self.store, key, (*ANSWERING, "reason")):
                asked = with_doubts(rows.filter(pc.is_in(rows["case"], value_set=cases)), doubts)
                found.append(best_of(asked, version, version_path, cache=cache).select(_KEPT))
            best = [best_of_cases(pa.concat_tables(found))] if found else []
        return answers_of(best[0]) if best else {}

    def doubted_once(
        self, version_path: str, wanted: Iterable[str], *, cache: str | None = None
    ) -> dict[str, str]:
        """Where the number of each wanted case was measured that is answered by a doubtful session
        (`answers`), by the name of the place; without those that two such sessions measured."""
        answers = self.answers(version_path, wanted, cache=cache)
        doubted = pa.array([case for case, found in answers.items() if found.is_doubted], TEXT)
        if self.manifest is None or not len(doubted):
            return {}
        version = self.versions[version_path]
        doubts = self._doubts(version, version_path, self.manifest.measurements)
        places: dict[str, list[str]] = {}
        for key in self.manifest.measurements:
            for rows in _batches(self.store, key, (*ANSWERING, "reason", *_PLACE)):
                rows = with_doubts(rows.filter(pc.is_in(rows["case"], value_set=doubted)), doubts)
                for row in of_stack(rows, version, version_path, cache=cache).to_pylist():
                    if is_of_doubtful_session(row["outcome"], row["reason"], row["warnings"]):
                        place = place_name(row["node"], row["device_serial"])
                        places.setdefault(row["case"], []).append(place)
        return {case: found[0] for case, found in places.items() if len(found) == 1}

    def _doubts(self, version: Version, version_path: str, files: Iterable[str]) -> Doubts:
        """The sessions of a version directory that their canaries make doubtful."""
        told = [
            canary_rows(rows, version, version_path)
            for key in files
            for rows in _batches(self.store, key, CANARY_COLUMNS)
        ]
        return doubts_of(factors_of(pa.concat_tables(told), version)) if told else {}


class HeldShards:
    """The shards of one campaign that measurements of the database came from. Files of
    measurements never change: each is read once, however often somebody asks."""

    def __init__(self, store: Store, campaign: str):
        self.store = store
        self._campaign = campaign
        self._of_file: dict[str, frozenset[str]] = {}
        self._snapshot = ""
        self._plans = frozenset[MergedPlan]()
        self._held = frozenset[str]()

    def at(self, head: Commit | None) -> frozenset[str]:
        """Those that this head holds. An id is told of the one campaign only: two campaigns that
        plan the same cases have shards of one id."""
        self._look(head)
        return self._held if head else frozenset()

    def plans_at(self, head: Commit | None) -> frozenset[MergedPlan]:
        """The campaign's plans that they are of."""
        self._look(head)
        return self._plans if head else frozenset()

    def _look(self, head: Commit | None) -> None:
        if head is None or self._snapshot == head.snapshot:
            return
        manifest = read_manifest(self.store, head)
        plans = frozenset(plan for plan in manifest.plans if plan.campaign == self._campaign)
        files = manifest.measurements if plans else ()
        self._held = frozenset[str]().union(*map(self._held_in, files))
        self._snapshot, self._plans = head.snapshot, plans

    def _held_in(self, key: str) -> frozenset[str]:
        if key not in self._of_file:
            found: set[str] = set()
            for rows in _batches(self.store, key, ("campaign", "shard")):
                own = rows.filter(pc.equal(rows["campaign"], self._campaign))
                found.update(pc.unique(own["shard"]).to_pylist())
            self._of_file[key] = frozenset(found)
        return self._of_file[key]


def _batches(store: Store, key: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a file of measurements, these columns alone. Raises DamagedObject, naming
    the key, where it is not what its name promises."""
    sha256 = key.removeprefix(keys.MEASUREMENTS).removesuffix(".parquet")
    yield from _batches_in(read_sealed(store, key, sha256, named_by=None), columns, key)


def _batches_in(data: bytes, columns: Sequence[str], key: str) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        known = [name for name in columns if name not in ABSENT or name in file.schema.names]
        for batch in file.iter_batches(_BATCH_ROWS, columns=known, use_threads=False):
            yield completed(pa.table(batch), columns)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise DamagedObject(f"unexpected columns in a table: {error}", path=key) from error


# How well the head of a database knows each case, as its rows say it: what a plan goes by that
# measures again where it tells most. The rows are read a file at a time, not the database.


@dataclass(frozen=True, slots=True)
class KnownInterval:
    """How far the stack's interval of a case goes to each side, as the logarithm of a ratio, and of
    how many sessions its mean is. What the profiler cannot tell is not in it: it takes the lower
    end further down, and no session narrows that."""

    reach: float
    sessions: int


def known_intervals(published: Published, version_path: str) -> dict[str, KnownInterval | None]:
    """What a version directory shows a duration of, by case id, without collectives: the interval
    of each, None where an earlier edition showed none. Raises DamagedObject for rows that say
    something else."""
    if published.manifest is None or published.commit is None:
        return {}
    found: dict[str, KnownInterval | None] = {}
    for path, entry in published.manifest.tree.items():
        name = path.removeprefix(f"{version_path}/")
        if name == path or not is_kernel_file_name(name):
            continue
        data = read_file(published.store, published.commit, path, entry)
        try:
            found |= _intervals(data, PurePosixPath(path).stem)
        except (ArithmeticError, BadInput, KeyError, ValueError) as error:
            raise DamagedObject(f"expected rows with intervals: {error}", path=path) from error
    return found


def _intervals(data: bytes, kernel_type: str) -> dict[str, KnownInterval | None]:
    rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    shown = (row for row in rows if row.get(AVERAGE_DURATION))
    return {case_from_cells(kernel_type, row).case_id: _interval(row) for row in shown}


def _interval(row: Mapping[str, str]) -> KnownInterval | None:
    mean, low, high = (row.get(name) or "" for name in (AVERAGE_DURATION, *STACK_INTERVAL))
    if not (low and high):
        return None
    # The first rows with intervals said of no number of sessions: it was the last one's.
    return KnownInterval(log(float(high) / float(mean)), int(row.get(SESSIONS) or 1))
