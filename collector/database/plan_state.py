"""What a plan has committed so far, as a state: the only way measurements enter the database.

Every object is checked against the hash that the plan or the committed manifest gives, and every
row against its own id, so that what a merge reads is what a worker wrote.
"""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector import keys
from collector.canonical import canonical_json
from collector.database.sealed import read_sealed
from collector.database.state import (
    CASE_SCHEMA,
    PROFILE_SCHEMA,
    TEXT,
    MergedPlan,
    State,
    rank_of,
    version_of,
)
from collector.errors import BadInput, NotFound
from collector.manifest import (
    AttemptManifest,
    commit_from_json,
    manifest_from_json,
)
from collector.measurement import ROW_COLUMNS, Outcome, measurement_id_of
from collector.plan import Plan, PlannedShard, plan_from_json
from collector.record import CaseRecord, as_ran
from collector.shard import read_shard
from collector.store.base import Store
from collector.vocabulary import BASE_CELLS

_READERS = 8
_WHOLE_NUMBERS = ("plan", "head_commit", "session", "n_expected", "n_observed", "n_accepted")


@dataclass(frozen=True, slots=True)
class PlanResults:
    """A plan, the state that its committed shards make, and the shards that nobody committed."""

    plan: Plan
    state: State
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _StoredShard:
    """What lies in the store of one shard: the bytes, checked, and not yet read."""

    shard_id: str
    table: bytes
    manifest: AttemptManifest | None  # None while nobody has committed it
    manifest_key: str
    parts: tuple[tuple[str, bytes], ...]


def plan_state(store: Store, campaign: str, number: int) -> PlanResults:
    """Read everything a plan has committed. With its first measurement every case of the plan is
    in the state, measured or not; before it the state is empty. Raises BadInput, naming the key,
    for an object that is not what was committed."""
    plan = _read_plan(store, campaign, number)
    with ThreadPoolExecutor(_READERS) as pool:
        shards = list(pool.map(lambda shard: _fetch(store, plan, shard), plan.shards))
    missing = tuple(shard.shard_id for shard in shards if shard.manifest is None)
    cases, profiles, measurements = [], [], []
    for shard in shards:
        key = keys.shard(plan.campaign, shard.shard_id)
        records = [case.record for case in read_shard(shard.table, path=key)]
        cases.append(_case_rows(plan, records))
        profiles.append(_profile_rows(plan, records))
        if shard.manifest is not None:
            table = _measurements(plan, shard, shard.manifest)
            measurements.append(table)
            cases.append(_case_rows(plan, records_that_ran(table, records, shard.manifest_key)))
    # The records of a plan, its stack and its op_mapping follow from the plan alone, whichever of
    # its shards are committed (those of kernels that ran in place of others follow from their
    # measurements). So they are the same whenever they come, nothing is lost while they wait for
    # the first measurement, and no version is made of a plan that measured nothing.
    if not any(table.num_rows for table in measurements):
        return PlanResults(plan, State.empty(), missing)
    state = State.of_rows(
        measurements=measurements,
        cases=cases,
        profiles=profiles,
        versions={plan.stack.version_path: version_of(plan)},
        plans=[MergedPlan(plan.campaign, plan.number, plan.plan_hash)],
    )
    return PlanResults(plan, state, missing)


def measurement_rows(data: bytes, *, key: str) -> pa.Table:
    """The rows of a part. Raises BadInput, naming the key, for anything else."""
    try:
        table = pa_csv.read_csv(
            io.BytesIO(data),
            read_options=pa_csv.ReadOptions(use_threads=False),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(ROW_COLUMNS, TEXT), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        raise BadInput(f"a part is wanted: {error}", path=key) from error
    if tuple(table.column_names) != ROW_COLUMNS:
        raise BadInput("a part is wanted, with one column per field of a measurement", path=key)
    check_rows(table, key)
    return table


def check_rows(table: pa.Table, key: str) -> None:
    """Raises BadInput, naming the key, for rows that are no measurements, and for an id that does
    not follow from its own row."""
    try:
        for name in _WHOLE_NUMBERS:
            table[name].cast(pa.int64())
        timed = table.filter(pc.not_equal(table["mean_us"], ""))
        timed["mean_us"].cast(pa.float64())
    except pa.ArrowInvalid as error:
        raise BadInput(f"a row is no measurement: {error}", path=key) from error
    if unknown := set(pc.unique(table["outcome"]).to_pylist()) - set(Outcome):
        raise BadInput(f"outcome {min(unknown)!r} is not known", path=key)
    if wrong := _wrong_ids(table):
        raise BadInput(f"measurement {wrong[0]!r} does not follow from its own row", path=key)


def _wrong_ids(table: pa.Table) -> list[str]:
    """The measurements whose id does not follow from their own row."""
    names = ("shard", "attempt", "session", "case", "asked", "measurement")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        measurement
        for shard, attempt, session, case, asked, measurement in rows
        if measurement_id_of(shard, attempt, int(session), case, asked) != measurement
    ]


def _read_plan(store: Store, campaign: str, number: int) -> Plan:
    key = keys.plan(campaign, number)
    try:
        return plan_from_json(store.get(key), key=key)
    except NotFound as error:
        raise BadInput(f"campaign {campaign!r} has no plan {number} at {store.url}") from error


def _fetch(store: Store, plan: Plan, shard: PlannedShard) -> _StoredShard:
    shard_id = shard.shard_id
    table = read_sealed(
        store,
        keys.shard(plan.campaign, shard_id),
        shard.sha256,
        named_by=keys.plan(plan.campaign, plan.number),
    )
    key = keys.committed(plan.campaign, shard_id)
    try:
        commit = commit_from_json(store.get(key), key=key)
    except NotFound:
        return _StoredShard(shard_id, table, None, "", ())
    stored = commit.manifest
    data = read_sealed(store, stored.key, stored.sha256, named_by=key)
    manifest = manifest_from_json(data, key=stored.key)
    parts = tuple(
        (part.key, read_sealed(store, part.key, part.sha256, named_by=stored.key))
        for part in (entry.part for entry in manifest.parts)
    )
    return _StoredShard(shard_id, table, manifest, stored.key, parts)


def _measurements(plan: Plan, shard: _StoredShard, manifest: AttemptManifest) -> pa.Table:
    """Every row of a shard's parts, marked with what the manifest and the plan say of it."""
    if not shard.parts:
        raise BadInput("it names no part, and a committed shard has one", path=shard.manifest_key)
    parts = [measurement_rows(data, key=key) for key, data in shard.parts]
    table = pa.concat_tables(parts).combine_chunks()
    _check_stack(table, plan, shard.manifest_key)
    final = _final_flags(table, manifest, shard.manifest_key)
    path = pa.array([plan.stack.version_path] * table.num_rows, TEXT)
    return table.append_column("final", final).append_column("version_path", path)


def _check_stack(table: pa.Table, plan: Plan, key: str) -> None:
    foreign = set(pc.unique(table["stack_id"]).to_pylist()) - {plan.stack.stack_id}
    if foreign:
        raise BadInput(
            f"measurements of stack {min(foreign)} came for a plan of stack {plan.stack.stack_id}; "
            "results of different stacks never mix",
            path=key,
        )


def _final_flags(table: pa.Table, manifest: AttemptManifest, key: str) -> pa.Array:
    named = set(manifest.final.items())
    rows = list(zip(table["case"].to_pylist(), table["measurement"].to_pylist(), strict=True))
    if absent := named.difference(rows):
        case, measurement = min(absent)
        raise BadInput(
            f"it names {measurement} as final for case {case}, and none of its parts holds it",
            path=key,
        )
    # A kernel that ran in place of the one asked for answers nothing of its shard, so that no
    # manifest names it. What was measured of it is as good as any other.
    filed = _filed_well(table)
    flags = (row in named or extra for row, extra in zip(rows, filed, strict=True))
    return pa.array(list(flags), pa.bool_())


def _filed_well(table: pa.Table) -> list[bool]:
    """For each row whether it is a good measurement of another case than was asked for."""
    columns = (table[name].to_pylist() for name in ("asked", "outcome"))
    return [bool(asked) and outcome == Outcome.OK for asked, outcome in zip(*columns, strict=True)]


def records_that_ran(table: pa.Table, records: Sequence[CaseRecord], key: str) -> list[CaseRecord]:
    """The records of the cases that ran in place of a shard's own: of the same tensors, under the
    kernel type and the state that the profiler told. Raises BadInput, naming the key, where a row
    does not follow from the case that it says was asked for."""
    shown = table.filter(pa.array(_filed_well(table), pa.bool_()))
    asked_for = {record.case_id: record for record in records}
    found = {}
    for row in shown.select(["case", "asked", "kernel_type", "op_state", "core"]).to_pylist():
        asked = asked_for.get(row["asked"])
        if asked is None:
            raise BadInput(f"a kernel ran for case {row['asked']}, which is none of it", path=key)
        ran = as_ran(asked, row["kernel_type"], row["op_state"], row["core"])
        if ran.case_id != row["case"]:
            raise BadInput(
                f"{row['kernel_type']} ran for case {row['asked']}, and that is not "
                f"case {row['case']}",
                path=key,
            )
        found[ran.case_id] = ran
    return list(found.values())


def _case_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    columns: dict[str, list[object]] = {
        **_key_columns(plan, records),
        "kernel_type": [record.case.kernel_type for record in records],
        **{name: [record.cells.get(name, "") for record in records] for name in BASE_CELLS},
        "extra": [canonical_json(dict(r.extra)).decode() if r.extra else "" for r in records],
    }
    return pa.table(columns, schema=CASE_SCHEMA)


def _profile_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
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
