"""The committed results of a plan as a state: the only way measurements enter the database.

Every object is checked against the hash that the plan or the committed manifest records, and every
row against its id, so that a merge reads exactly what a worker wrote. A shard that fails its checks
is damaged: it is reported, and all other shards are merged.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.database.curves import work_of
from collector.database.plans import Damage, MergedPlan, plan_reader
from collector.database.raw_records import RawRecord
from collector.database.rows import case_rows, profile_rows, rows_of_part
from collector.database.shard_commits import CommittedAttempt, StoredShard, fetch
from collector.database.state import TEXT, State, with_column
from collector.database.versions import version_of
from collector.environment import map_concurrently
from collector.model import keys
from collector.model.manifest import AttemptManifest
from collector.model.measurement import CLOCK, IMPORTED, PROFILER, Outcome
from collector.model.plan import Plan, read_shard
from collector.model.record import CaseRecord, as_ran
from collector.model.row import value_of
from collector.model.stack import EVENTS, HOST, backend_of
from collector.ops.floor import MIN_US, lower_bound_us
from collector.ops.together import Floats, Whole
from collector.quality.gates import CORE_TIMES, cores_worked_longer, implausible, max_core_time_us
from collector.store.base import AT_ONCE, Store

# Checks of the measurements in a part against the lower bound and the limit of each case, and
# against the work of its cores.
#
# A worker has made these checks already. A merge repeats them because a part may come from
# anywhere. The result depends only on the plan, the case and the measurement, so that every merge
# gets the same.

_OF_COUNTERS = ("n_observed", "n_accepted", "counters")
_CORE_TIME = {name: rf'\["{re.escape(name)}",(?P<us>[-+.0-9eE]+)\]' for name in CORE_TIMES}


def most_lower_bounds_us(cases: pa.Table, plan: Plan) -> Mapping[str, float]:
    """Return an upper limit of the lower bound of each case of a plan's records. For a duration
    above it, the lower bound itself is not computed. Cases are not checked against the operators'
    declarations; those whose work is not known are absent."""
    most_us = work_of(cases, plan.stack, is_checked=False).lower_bounds_us(plan.stack)
    known = zip(cases["case"].to_pylist(), most_us.tolist(), strict=True)
    return {case: us for case, us in known if not isnan(us)}


def with_implausible(
    table: pa.Table, records: Iterable[CaseRecord], plan: Plan, most_us: Mapping[str, float]
) -> pa.Table:
    """Return the rows of a plan's parts, given `most_lower_bounds_us`. Rows that cannot be
    measurements of their case have the outcome `implausible`, with the reason; nothing else of them
    changes."""
    limit_us = plan.limits.case_s * 1e6
    suspect = _suspect_rows(table, most_us, limit_us)
    if not len(suspect):
        return table
    known = {record.case_id: record for record in records}
    outcomes, reasons = table["outcome"].to_pylist(), table["reason"].to_pylist()
    worked = _worked_us(table.take(pa.array(suspect)))
    for place, at in enumerate(suspect.tolist()):
        record = known.get(table["case"][at].as_py())
        least_us = MIN_US if record is None else lower_bound_us(record.case, plan.stack)
        mean_us = float(table["mean_us"][at].as_py())
        own = {name: float(worked_us[place]) for name, worked_us in worked.items()}
        reason = implausible(mean_us, lowest_us=least_us, limit_us=limit_us)
        if reason := reason or cores_worked_longer(mean_us, own):
            outcomes[at], reasons[at] = Outcome.IMPLAUSIBLE.value, reason
    table = with_column(table, "outcome", pa.array(outcomes, TEXT))
    return with_column(table, "reason", pa.array(reasons, TEXT))


def _suspect_rows(table: pa.Table, most_us: Mapping[str, float], limit_us: float) -> Whole:
    """Return the indices of the good rows that may be below their lower bound, are above the limit,
    or took less time than their cores worked."""
    has_mean = pc.and_(pc.equal(table["outcome"], Outcome.OK), pc.not_equal(table["mean_us"], ""))
    measured = np.flatnonzero(has_mean.to_numpy())
    rows = table.select(["case", "mean_us", *_OF_COUNTERS]).take(pa.array(measured))
    mean_us = rows["mean_us"].cast(pa.float64()).to_numpy()
    lowest_us = np.array([most_us.get(case, np.inf) for case in rows["case"].to_pylist()])
    is_well = (lowest_us <= mean_us) & (mean_us <= limit_us)
    for worked_us in _worked_us(rows).values():
        is_well &= worked_us <= max_core_time_us(mean_us)
    return np.asarray(measured[~is_well], np.int64)


def _worked_us(rows: pa.Table) -> dict[str, Floats]:
    """Return how long the cores worked in each row, by the names of the counters; 0 without a
    record. Counters include repeats that the outlier rule excludes from the mean: rows with such
    repeats are not compared with their counters."""
    is_of_mean = pc.equal(rows["n_observed"], rows["n_accepted"])
    core_times = {}
    for name, pattern in _CORE_TIME.items():
        found = pc.struct_field(pc.extract_regex(rows["counters"], pattern), "us")
        worked_us = pc.if_else(is_of_mean, found, None).cast(pa.float64())
        core_times[name] = pc.fill_null(worked_us, 0.0).to_numpy()
    return core_times


@dataclass(frozen=True, slots=True)
class MergedPlans:
    """The plans, and the shards by campaign and id, that a database has already."""

    plans: frozenset[MergedPlan] = frozenset()
    shards: frozenset[tuple[str, str]] = frozenset()

    def has(self, plan: Plan, shard_id: str) -> bool:
        """Return whether the database has the measurements of a shard."""
        return (plan.campaign, shard_id) in self.shards


NOTHING = MergedPlans()


@dataclass(frozen=True, slots=True)
class PlanResults:
    """A plan, the state of its committed shards, the shards without a commit, the shards with an
    unreadable object, and the profiler's records of the others."""

    plan: Plan
    state: State
    missing: tuple[str, ...]
    damaged: tuple[Damage, ...]
    records: tuple[RawRecord, ...] = ()


def read_results(store: Store, plan: Plan, held: MergedPlans = NOTHING) -> PlanResults:
    """Read the committed results of a plan that the database does not have. With the plan's first
    measurement every case of the plan is in the state, measured or not; before it the state is
    empty."""
    plan_of = plan_reader(store, plan.campaign)
    new = {shard.shard_id for shard in plan.shards if not held.has(plan, shard.shard_id)}
    is_merged = MergedPlan.of(plan) in held.plans
    needed = [one for one in plan.shards if one.shard_id in new or not is_merged]

    def shards() -> Iterator[StoredShard]:
        for begin in range(0, len(needed), AT_ONCE):  # so that few parts are in memory at once
            yield from map_concurrently(
                lambda one: fetch(
                    store, plan, one, with_attempt=one.shard_id in new, plan_of=plan_of
                ),
                needed[begin : begin + AT_ONCE],
                AT_ONCE,
            )

    return _results_of(plan, held, shards())


def damage_in(plan: Plan, shard: StoredShard) -> Damage | None:
    """Return why a merge could not publish a stored shard; None if it could."""
    return next(iter(_results_of(plan, NOTHING, [shard]).damaged), None)


def _results_of(plan: Plan, held: MergedPlans, shards: Iterable[StoredShard]) -> PlanResults:
    """Return the results of these shards.

    The records of a plan, its stack and its op_mapping follow from the plan alone, whichever of its
    shards are committed (the records of kernels that ran instead of others follow from their
    measurements). So they do not depend on when they are added, nothing is lost while they wait for
    the first measurement, and a plan without measurements makes no version."""
    tables: dict[str, list[pa.Table]] = {"measurements": [], "cases": [], "profiles": []}
    missing, damaged, raw_records = list[str](), list[Damage](), list[RawRecord]()
    is_measured = False
    for shard in shards:
        try:
            key = keys.shard(plan.campaign, shard.shard_id)
            planned = [] if shard.table is None else read_shard(shard.table, path=key)
            records = [case.record for case in planned]
            cases = case_rows(plan, records)
            tables["cases"].append(cases)
            tables["profiles"].append(profile_rows(plan, records))
            if shard.damage is not None:
                raise shard.damage
            if (attempt := shard.attempt) is not None:
                rows = _measurements(plan, attempt, records, cases)
                tables["measurements"].append(rows)
                tables["cases"].append(case_rows(plan, _records_that_ran(rows, records)))
                raw_records += (
                    RawRecord(attempt.manifest.shard, raw, attempt.key)
                    for entry in attempt.manifest.parts
                    for raw in entry.raw
                )
            elif not held.has(plan, shard.shard_id):
                missing.append(shard.shard_id)
                continue
            is_measured = True
        except BadInput as error:
            damaged.append(Damage(plan.campaign, plan.number, shard.shard_id, str(error)))
    state = State.empty()
    if is_measured:
        versions = {plan.stack.version_path: version_of(plan)}
        state = State.of_rows(
            measurements=tables["measurements"],
            cases=tables["cases"],
            profiles=tables["profiles"],
            versions=versions,
            plans=[MergedPlan.of(plan)],
        )
    return PlanResults(plan, state, tuple(missing), tuple(damaged), tuple(raw_records))


def _measurements(
    plan: Plan, attempt: CommittedAttempt, records: Sequence[CaseRecord], cases: pa.Table
) -> pa.Table:
    """Return every row of a shard's parts, with columns from the manifest and the plan."""
    if not attempt.parts:
        raise BadInput(
            "expected at least one part in the manifest of a committed shard, got none",
            path=attempt.key,
        )
    own = {record.case_id: record for record in records}
    if foreign := attempt.manifest.final.keys() - own.keys():
        what = f"expected final cases of the shard, got case {min(foreign)}"
        raise BadInput(what, path=attempt.key)
    parts = []
    for key, data in attempt.parts:
        part = rows_of_part(data, key=key)
        attempt.bound.check_part(partial(_texts, part), own, key)
        parts.append(part)
    table = pa.concat_tables(parts).combine_chunks()
    _check_source(table, plan, attempt.key)
    known = (*records, *_records_that_ran(table, records))
    table = with_implausible(table, known, plan, most_lower_bounds_us(cases, plan))
    if not table.num_rows:
        raise BadInput("expected at least one row in the parts, got none", path=attempt.key)
    path = pa.array([plan.stack.version_path] * table.num_rows, TEXT)
    final = _final_flags(table, attempt.manifest, attempt.key)
    return table.append_column("final", final).append_column("version_path", path)


def _check_source(table: pa.Table, plan: Plan, key: str) -> None:
    """Raise BadInput unless the clock of the stack's backend timed a launch, and if only one of a
    row and its plan is imported."""
    backend = backend_of(plan.stack.device)
    sources = [backend] if backend in (EVENTS, HOST) else [PROFILER]
    if backend == "cpu":
        sources.append(CLOCK)
    if plan.stack.is_imported:
        sources = [IMPORTED]
    is_timed = pc.not_equal(table["mean_us"], "")
    is_other = pc.invert(pc.is_in(table["timed_by"], pa.array(sources)))
    if pc.any(pc.and_(is_timed, is_other)).as_py():
        expected = f"timed_by: expected {' or '.join(sources)} for {plan.stack.device}"
        what = f"{expected}, got another source"
        raise BadInput(f"{what}; measure with the backend of the campaign", path=key)


def _texts(table: pa.Table, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _final_flags(table: pa.Table, manifest: AttemptManifest, key: str) -> pa.Array:
    named = set(manifest.final.items())
    rows = list(_texts(table, ("case", "measurement", "asked", "outcome")))
    if absent := named.difference((case, m) for case, m, requested, _ in rows if not requested):
        case, measurement = min(absent)
        raise BadInput(
            f"expected final measurement {measurement} of case {case} in a part, found none",
            path=key,
        )
    # A kernel that ran instead of the requested one gives no result for its shard, so no manifest
    # names its measurement. The measurement is as valid as any other.
    return pa.array(
        [
            (case, measurement) in named or (bool(requested) and outcome == Outcome.OK)
            for case, measurement, requested, outcome in rows
        ],
        pa.bool_(),
    )


def _records_that_ran(table: pa.Table, records: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Return the records of the cases that ran instead of a shard's own and have a good
    measurement: the same tensors, under the kernel type and the state that the profiler reported.
    The rows were checked against the shard, whose `records` these are."""
    requested = {record.case_id: record for record in records}
    names = ("asked", "outcome", "kernel_type", "op_state", "core", "recorded")
    found = [
        as_ran(requested[case], kernel_type, op_state, core, value_of("recorded", recorded))
        for case, outcome, kernel_type, op_state, core, recorded in _texts(table, names)
        if case and outcome == Outcome.OK
    ]
    return list({ran.case_id: ran for ran in found}.values())
