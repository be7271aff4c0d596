"""The records of a plan's cases as rows of a state, each with the rank of the plan."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa

from collector.canonical import canonical_json
from collector.case import normal_kernel_type
from collector.database.state import CASE_SCHEMA, PROFILE_SCHEMA, rank_of
from collector.plan import Plan
from collector.record import CaseRecord
from collector.vocabulary import BASE_CELLS


def case_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    columns: dict[str, list[object]] = {
        **_key_columns(plan, records),
        "kernel_type": [normal_kernel_type(record.kernel_type) for record in records],
        **{name: [record.cells.get(name, "") for record in records] for name in BASE_CELLS},
        "extra": [canonical_json(dict(r.extra)).decode() if r.extra else "" for r in records],
    }
    return pa.table(columns, schema=CASE_SCHEMA)


def case_records(rows: pa.Table) -> Iterator[tuple[str, CaseRecord]]:
    """The cases of such rows again: id and record."""
    for row in rows.to_pylist():
        cells = {name: row[name] or "" for name in BASE_CELLS}
        extra = json.loads(row["extra"]) if row["extra"] else {}
        yield row["case"], CaseRecord(row["kernel_type"], cells, extra)


def profile_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    """Statistics of a source's own run. A shard holds only those of the plan's own stack: the
    planner leaves out what a source of another one says."""
    seen = [(record, record.profile) for record in records if record.profile is not None]
    columns: dict[str, list[object]] = {
        **_key_columns(plan, [record for record, _ in seen]),
        "stack_id": [plan.stack.stack_id] * len(seen),
        **{n: [getattr(p, n) for _, p in seen] for n in ("count", "mean_us", "median_us")},
        "std_us": [p.std_us for _, p in seen],
        "counters": [canonical_json([list(pair) for pair in p.counters]).decode() for _, p in seen],
    }
    return pa.table(columns, schema=PROFILE_SCHEMA)


def _key_columns(plan: Plan, records: Sequence[CaseRecord]) -> dict[str, list[object]]:
    head_commit, number, plan_hash = rank_of(plan)
    rows = len(records)
    return {
        "version_path": [plan.stack.version_path] * rows,
        "case": [record.case_id for record in records],
        "head_commit": [head_commit] * rows,
        "plan": [number] * rows,
        "plan_hash": [plan_hash] * rows,
    }
