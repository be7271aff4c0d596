"""What a plan has committed so far, as a state: the only way measurements enter the database.

Every object is checked against the hash that the plan or the committed manifest gives, and every
row against its own id, so that what a merge reads is what a worker wrote. A shard that fails its
checks is damaged: it is told, and nothing else waits for it.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector import keys
from collector.canonical import canonical_json
from collector.case import normal_kernel_type
from collector.database.binding import BoundShard
from collector.database.committed import CommittedAttempt, StoredShard, fetch
from collector.database.plans import Damage, MergedPlan, plan_reader
from collector.database.plausible import with_implausible
from collector.database.raw_records import RawRecord, records_named
from collector.database.row_values import check_values
from collector.database.state import (
    CASE_SCHEMA,
    PROFILE_SCHEMA,
    TEXT,
    State,
    rank_of,
    version_of,
)
from collector.errors import BadInput
from collector.manifest import AttemptManifest
from collector.measurement import ROW_COLUMNS, Outcome, Timing, measurement_id_of
from collector.plan import Plan, PlannedShard
from collector.record import CaseRecord, as_ran
from collector.shard import read_shard
from collector.store.base import Store
from collector.surroundings import side_by_side
from collector.vocabulary import BASE_CELLS

_READERS = 8
_MOST_BLOCK_BYTES = (1 << 31) - 1
_TIMING = tuple(field.name for field in fields(Timing))


@dataclass(frozen=True, slots=True)
class Held:
    """What a database holds already: plans, and shards by campaign and id."""

    plans: frozenset[MergedPlan] = frozenset()
    shards: frozenset[tuple[str, str]] = frozenset()

    def has(self, plan: Plan, shard_id: str) -> bool:
        """Whether it has the measurements of a shard."""
        return (plan.campaign, shard_id) in self.shards


NOTHING = Held()


@dataclass(frozen=True, slots=True)
class PlanResults:
    """A plan, the state that its committed shards make, the shards that nobody committed, those of
    which something stored cannot be read, and what the profiler recorded of the others."""

    plan: Plan
    state: State
    missing: tuple[str, ...]
    damaged: tuple[Damage, ...]
    records: tuple[RawRecord, ...] = ()


def read_results(store: Store, plan: Plan, held: Held = NOTHING) -> PlanResults:
    """Read what a plan has committed and the database does not hold. With its first measurement
    every case of the plan is in the state, measured or not; before it the state is empty."""
    new = _shards_to_read(plan, held)
    plan_of = plan_reader(store, plan.campaign)
    shards = side_by_side(
        lambda shard: fetch(
            store,
            plan,
            shard,
            with_answer=not held.has(plan, shard.shard_id),
            plan_of=plan_of,
        ),
        new,
        _READERS,
    )
    rows = _Rows(plan, held)
    for shard in shards:
        rows.add(shard)
    return PlanResults(
        plan, rows.state(), tuple(rows.missing), tuple(rows.damaged), tuple(rows.records)
    )


def damage_in(plan: Plan, shard: StoredShard) -> Damage | None:
    """Why a merge could not publish a stored shard; None where it could."""
    rows = _Rows(plan, NOTHING)
    rows.add(shard)
    return rows.damaged[0] if rows.damaged else None


def _shards_to_read(plan: Plan, held: Held) -> list[PlannedShard]:
    """All, but of a plan that was merged before only those whose measurements are not there."""
    if MergedPlan.of(plan) not in held.plans:
        return list(plan.shards)
    return [shard for shard in plan.shards if not held.has(plan, shard.shard_id)]


class _Rows:
    """What the shards of a plan add up to."""

    def __init__(self, plan: Plan, held: Held):
        self._plan, self._held = plan, held
        self._cases: list[pa.Table] = []
        self._profiles: list[pa.Table] = []
        self._measurements: list[pa.Table] = []
        self._is_measured = False
        self.missing: list[str] = []
        self.damaged: list[Damage] = []
        self.records: list[RawRecord] = []

    def add(self, shard: StoredShard) -> None:
        """Take up what can be read of a shard."""
        try:
            self._add(shard)
        except BadInput as error:
            plan = self._plan
            self.damaged.append(Damage(plan.campaign, plan.number, shard.shard_id, str(error)))

    def _add(self, shard: StoredShard) -> None:
        records = self._add_records(shard)
        if shard.damage is not None:
            raise shard.damage
        if shard.answer is not None:
            self._add_answer(shard.answer, records)
        elif self._held.has(self._plan, shard.shard_id):
            self._is_measured = True
        else:
            self.missing.append(shard.shard_id)

    def _add_records(self, shard: StoredShard) -> list[CaseRecord]:
        if shard.table is None:
            return []
        key = keys.shard(self._plan.campaign, shard.shard_id)
        records = [case.record for case in read_shard(shard.table, path=key)]
        self._cases.append(_case_rows(self._plan, records))
        self._profiles.append(_profile_rows(self._plan, records))
        return records

    def _add_answer(self, answer: CommittedAttempt, records: list[CaseRecord]) -> None:
        table = _measurements(self._plan, answer, records)
        if not table.num_rows:
            raise BadInput("none of its parts holds a row", path=answer.key)
        ran = records_that_ran(table, records)
        self._measurements.append(table)
        self.records += records_named(answer.manifest, answer.key)
        self._cases.append(_case_rows(self._plan, ran))
        self._is_measured = True

    def state(self) -> State:
        """The records of a plan, its stack and its op_mapping follow from the plan alone, whichever
        of its shards are committed (those of kernels that ran in place of others follow from their
        measurements). So they are the same whenever they come, nothing is lost while they wait for
        the first measurement, and no version is made of a plan that measured nothing."""
        if not self._is_measured:
            return State.empty()
        return State.of_rows(
            measurements=self._measurements,
            cases=self._cases,
            profiles=self._profiles,
            versions={self._plan.stack.version_path: version_of(self._plan)},
            plans=[MergedPlan.of(self._plan)],
        )


def measurement_rows(data: bytes, *, key: str) -> pa.Table:
    """The rows of a part. Raises BadInput, naming the key, for anything else."""
    # What worker.read_part reads row by row, read as columns: a merge moves 100,000s of rows.
    if b"\0" in data:
        raise BadInput("a part is wanted, and this holds NUL", path=key)
    try:
        table = pa_csv.read_csv(
            io.BytesIO(data),
            # One block, since a row longer than a block is refused.
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=min(len(data) + 1, _MOST_BLOCK_BYTES)
            ),
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
    check_values(table, key)
    try:
        _check_timings(table.filter(pc.not_equal(table["mean_us"], "")))
    except (pa.ArrowInvalid, BadInput) as error:
        raise BadInput(f"a row is no measurement: {error}", path=key) from error
    bare = pc.and_(pc.equal(table["outcome"], Outcome.OK.value), pc.equal(table["mean_us"], ""))
    if pc.any(bare).as_py():
        raise BadInput("a row is ok and has no duration", path=key)
    if wrong := _wrong_ids(table):
        raise BadInput(f"measurement {wrong[0]!r} does not follow from its own row", path=key)


def _check_timings(timed: pa.Table) -> None:
    """Raises BadInput or ArrowInvalid where the numbers of a row are no timing."""
    for numbers in zip(*(timed[n].cast(pa.float64()).to_pylist() for n in _TIMING), strict=True):
        Timing(*numbers)


def _wrong_ids(table: pa.Table) -> list[str]:
    """The measurements whose id does not follow from their own row."""
    names = ("shard", "attempt", "session", "case", "runtime", "asked", "measurement")
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    return [
        measurement
        for shard, attempt, session, case, runtime, asked, measurement in rows
        if measurement_id_of(shard, attempt, int(session), case, runtime, asked) != measurement
    ]


def _measurements(plan: Plan, answer: CommittedAttempt, records: Sequence[CaseRecord]) -> pa.Table:
    """Every row of a shard's parts, marked with what the manifest and the plan say of it."""
    if not answer.parts:
        raise BadInput("it names no part, and a committed shard has one", path=answer.key)
    own = {record.case_id: record for record in records}
    answer.bound.check_final(answer.manifest.final, own, answer.key)
    parts = [_part(answer.bound, own, key, data) for key, data in answer.parts]
    table = pa.concat_tables(parts).combine_chunks()
    ran = records_that_ran(table, records)
    table = with_implausible(table, (*records, *ran), plan)
    final = _final_flags(table, answer.manifest, answer.key)
    path = pa.array([plan.stack.version_path] * table.num_rows, TEXT)
    return table.append_column("final", final).append_column("version_path", path)


def _part(bound: BoundShard, records: Mapping[str, CaseRecord], key: str, data: bytes) -> pa.Table:
    table = measurement_rows(data, key=key)
    bound.check_part(
        lambda names: zip(*(table[name].to_pylist() for name in names), strict=True), records, key
    )
    return table


def _final_flags(table: pa.Table, manifest: AttemptManifest, key: str) -> pa.Array:
    named = set(manifest.final.items())
    columns = (table[name].to_pylist() for name in ("case", "measurement", "asked"))
    answers = list(zip(*columns, strict=True))
    rows = [(case, measurement) for case, measurement, _ in answers]
    if absent := named.difference((case, m) for case, m, asked in answers if not asked):
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


def records_that_ran(table: pa.Table, records: Sequence[CaseRecord]) -> list[CaseRecord]:
    """The records of the cases that ran in place of a shard's own, and were measured well: of the
    same tensors, under the kernel type and the state that the profiler told. The rows are bound to
    the shard, whose `records` these are."""
    shown = table.filter(pa.array(_filed_well(table), pa.bool_()))
    rows = shown.select(["asked", "kernel_type", "op_state", "core"]).to_pylist()
    asked_for = {record.case_id: record for record in records}
    found = [
        as_ran(asked_for[row["asked"]], row["kernel_type"], row["op_state"], row["core"])
        for row in rows
    ]
    return list({ran.case_id: ran for ran in found}.values())


def _case_rows(plan: Plan, records: Sequence[CaseRecord]) -> pa.Table:
    columns: dict[str, list[object]] = {
        **_key_columns(plan, records),
        "kernel_type": [normal_kernel_type(record.kernel_type) for record in records],
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
