"""Whether what a database says of campaigns is what lies under `campaigns/`.

Every measurement came from a part, which a committed manifest names by hash, of a shard of a plan
that a commit names by hash. All of it is read again, as a merge reads it, and the rows compared.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from collector import keys
from collector.database.plan_state import read_results
from collector.database.plans import MergedPlan, changed, read_plan
from collector.database.raw_records import RawRecord, record_problems
from collector.database.row_sets import distinct, identities, is_among
from collector.database.state import MEASUREMENT_SCHEMA
from collector.errors import BadInput, NotFound
from collector.store.base import Store

_ORIGIN = ("campaign", "shard", "attempt", "session")
_ID = ("measurement",)
_NO_ROWS = MEASUREMENT_SCHEMA.empty_table()
_SAID_OF_A_ROW = tuple(name for name in MEASUREMENT_SCHEMA.names if name != "final")


@dataclass(slots=True)
class Claims:
    """What commits say of campaigns, each with the first commit that says it."""

    plans: dict[MergedPlan, int] = field(default_factory=dict)
    rows: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)  # by their file's key

    def add_plans(self, commit: int, plans: Iterable[MergedPlan]) -> None:
        for plan in plans:
            self.plans.setdefault(plan, commit)

    def add_rows(self, commit: int, key: str, rows: pa.Table) -> None:
        self.rows.setdefault(key, (commit, rows))


def origin_problems(
    store: Store, claims: Claims, *, with_raw: bool = True
) -> Iterator[tuple[int, str]]:
    """The commit and the line of each claim that does not hold. What the profiler recorded is read
    again only `with_raw`."""
    published = _shards_of(claims)
    read = {plan: _read(store, plan, published) for plan in sorted(claims.plans)}
    looked_at = set[str]()  # plans may share a shard
    for plan, found in read.items():
        yield from ((claims.plans[plan], text) for text in found.problems)
        if with_raw:
            own = (record for record in found.records if record.stored.key not in looked_at)
            records = {record.stored.key: record for record in own}
            looked_at.update(records)
            yield from ((claims.plans[plan], t) for t in record_problems(store, records.values()))
    told = frozenset[str]().union(*(found.told for found in read.values()))
    stored = pa.concat_tables([found.rows for found in read.values()] or [_NO_ROWS])
    held = identities(stored, _SAID_OF_A_ROW)
    final = identities(stored.filter(stored["final"]), _ID)
    for key, (commit, rows) in claims.rows.items():
        for part, count in _unfounded(rows, held, final):
            if not part.startswith(tuple(told)):
                yield commit, f"{key}: {count} of its measurements do not match {part}"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The rows that a plan's shards hold, what cannot be read of it in lines, the prefixes of keys
    of which these lines tell, and the profiler's records of shards that are published."""

    rows: pa.Table
    problems: tuple[str, ...] = ()
    told: frozenset[str] = frozenset()
    records: tuple[RawRecord, ...] = ()


def _shards_of(claims: Claims) -> frozenset[tuple[str, str]]:
    """Campaign and id of every shard that some measurement came from."""
    found = (distinct(rows, ("campaign", "shard")) for _, rows in claims.rows.values())
    return frozenset[tuple[str, str]]().union(*found)


def _read(store: Store, merged: MergedPlan, published: Collection[tuple[str, str]]) -> _Reading:
    """What a plan left. Of a shard that no commit speaks of nothing is promised."""
    try:
        plan = read_plan(store, merged.campaign, merged.number)
    except NotFound:
        key = keys.plan(merged.campaign, merged.number)
        gone = f"{key}: missing, although plan {merged.plan_hash} was merged"
        return _Reading(_NO_ROWS, (gone,), frozenset({keys.all_attempts(merged.campaign)}))
    except BadInput as error:
        return _Reading(_NO_ROWS, (str(error),), frozenset({keys.all_attempts(merged.campaign)}))
    results = read_results(store, plan)
    broken = [d for d in results.damaged if (d.campaign, d.shard) in published]
    problems = [damage.reason for damage in broken]
    if other := changed(plan, [merged]):  # which is what is wrong with all its shards
        problems = [other.reason, *(d.reason for d in broken if d.key != other.key)]
    told = frozenset(keys.attempts(damage.campaign, damage.shard) for damage in broken)
    records = tuple(r for r in results.records if (plan.campaign, r.shard) in published)
    return _Reading(results.state.measurements, tuple(problems), told, records)


def _unfounded(rows: pa.Table, held: pa.Array, final: pa.Array) -> Iterator[tuple[str, int]]:
    """The keys of parts, and how many rows say that they came from there, and did not: rows that
    no committed part holds (`held` are those that one does), or that are `final` by no manifest."""
    is_held, is_final = is_among(rows, _SAID_OF_A_ROW, held), is_among(rows, _ID, final)
    is_founded = pc.and_(is_held, pc.or_(is_final, pc.invert(rows["final"])))
    unfounded = rows.filter(pc.invert(is_founded)).select(_ORIGIN)
    for row in unfounded.group_by(list(_ORIGIN)).aggregate([([], "count_all")]).to_pylist():
        place = (row["campaign"], row["shard"], row["attempt"], int(row["session"]))
        yield keys.part(*place), row["count_all"]
