"""Made-up campaigns for tests: what a planner and its workers would have left in a store."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collector.codec.canonical import sha256_hex
from collector.database.plan_state import read_results
from collector.database.state import State, join_all
from collector.model import keys
from collector.model.manifest import (
    NO_USAGE,
    AttemptManifest,
    PartEntry,
    ShardCommit,
    StoredObject,
    Usage,
    manifest_to_json,
    shard_commit_to_json,
)
from collector.model.measurement import (
    CanaryReading,
    Disturbance,
    Library,
    Measurement,
    Outcome,
    Proof,
    Provenance,
    Timing,
)
from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    PlannedSource,
    ShardCase,
    ShardSettings,
    plan_to_json,
    write_shard,
)
from collector.model.record import CaseRecord, ProfileStatistics, as_ran
from collector.model.row import ROW_COLUMNS, to_row
from collector.model.stack import Runtime, Stack, runtime_details
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OP_STATE,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
)
from collector.store.base import Store, create_once
from collector.store.in_memory import MemoryStore

STACK = Stack(device="CPU_test_2t", torch="2.13.0+cpu", details=(("flags", "avx2"),))
PATH = STACK.version_path


@dataclass(frozen=True)
class Tried:
    """How one try of a case ended; good if there is a mean. If another kernel `ran`, the mean is
    that of the other one, and the case itself is substituted."""

    mean_us: float | None = None
    outcome: Outcome = Outcome.FAILED
    counters: tuple[tuple[str, float], ...] = ()
    cache: str | None = None  # the plan's own by default
    ran: str = ""
    state: str = "dynamic"
    core: str = "AI_VECTOR_CORE"
    recorded: tuple[tuple[str, str], ...] = ()  # if it ran on other tensors
    reason: str = 'it said "no",\nand nothing else'  # if there is no mean
    disturbance: Disturbance | None = None
    library: Library = Library.NONE
    assumes: str = ""
    canaries: tuple[CanaryReading, ...] = ()
    profiler_floor_us: float = 0.0
    outlier_share: float = 0.0
    n_observed: int = 0
    n_accepted: int = 0
    warnings: tuple[str, ...] = ()
    timed_by: str = "profiler"


@dataclass(frozen=True)
class MadeShard:
    """Each session is one part: case id -> how it ended. The last try of a case is final."""

    name: str
    records: Sequence[CaseRecord]
    sessions: Sequence[Mapping[str, Tried]] = ()
    is_committed: bool = True


@dataclass(frozen=True)
class MadePlan:
    shards: Sequence[MadeShard]
    campaign: str = "made"
    number: int = 1
    head_commit: int = 0
    stack: Stack = STACK
    cache: str = "warm"
    op_mapping: str | None = None
    runtime: Runtime = Runtime.REAL
    attempt: str = "attempt-1"
    node: str = "node-1"
    raw: bytes = b""  # the raw records of each session, if there are any

    @property
    def name(self) -> tuple[str, int]:
        return (self.campaign, self.number)

    @property
    def whole_stack(self) -> Stack:
        """Return the stack, with the details of a fake runtime."""
        details = (*self.stack.details, *runtime_details(self.runtime))
        return replace(self.stack, details=tuple(sorted(details)))


def add_record(rows: int, *, core: str = "AI_VECTOR_CORE", kernel: str = "Add") -> CaseRecord:
    """Return a case `rows x 64 + rows x 64`, spelled as profiles do, with quotes inside the
    cell."""
    return record_of_shapes(kernel, f'"{rows},64;{rows},64"', f'"{rows},64"', core=core)


def record_of_shapes(
    kernel: str,
    inputs: str,
    outputs: str,
    *,
    core: str = "AI_VECTOR_CORE",
    extra: Mapping[str, str] | None = None,
    profile: ProfileStatistics | None = None,
) -> CaseRecord:
    slots = inputs.count(";") + 1
    cells = {
        OP_STATE: "dynamic",
        ACCELERATOR_CORE: core,
        INPUT_SHAPES: inputs,
        INPUT_DTYPES: ";".join(["DT_BF16"] * slots),
        INPUT_FORMATS: ";".join(["ND"] * slots),
        OUTPUT_SHAPES: outputs,
        OUTPUT_DTYPES: "DT_BF16",
        OUTPUT_FORMATS: "ND",
    }
    return CaseRecord(kernel, cells, dict(extra or {}), profile)


def answered(records: Sequence[CaseRecord], mean_us: float) -> dict[str, Tried]:
    """Return one session in which every record was measured, each a little slower than the last."""
    return {record.case_id: Tried(mean_us + at) for at, record in enumerate(records)}


def write_campaign(store: Store, made: MadePlan) -> Plan:
    """Write the plan, its shards, and the objects of the committed ones."""
    plan = plan_of(made)
    for shard in made.shards:
        create_once(store, keys.shard(plan.campaign, shard.name), table_of(shard))
    create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    for shard in made.shards:
        if shard.is_committed:
            commit_shard(store, made, plan, shard)
    return plan


def table_of(shard: MadeShard) -> bytes:
    return write_shard(ShardCase(record, 1.0) for record in shard.records)


def plan_of(made: MadePlan) -> Plan:
    cases = sum(len(shard.records) for shard in made.shards)
    return Plan(
        campaign=made.campaign,
        number=made.number,
        head_commit=made.head_commit,
        inputs_hash="made",
        round="",
        stack=made.whole_stack,
        backend="cpu",
        devices=1,
        operators=None,
        update="all",
        measure=MeasureSettings(cache=made.cache),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(PlannedSource("made", "0" * 64, cases, same_stack=False),),
        op_mapping=made.op_mapping,
        forecast=Forecast(cases, 0, 0, 1.0, 1.0, 1.0),
        shards=tuple(
            PlannedShard(s.name, len(s.records), 1.0, sha256_hex(table_of(s))) for s in made.shards
        ),
    )


def commit_shard(
    store: Store, made: MadePlan, plan: Plan, shard: MadeShard, usage: Usage = NO_USAGE
) -> None:
    """Write the made-up results of a shard's cases. `usage` is that of each session."""
    kernels = {record.case_id: record.case.kernel_type for record in shard.records}
    requested = {record.case_id: record for record in shard.records}
    sessions = []
    for number, session in enumerate(shard.sessions):
        measurements = [
            measurement_of(made, plan, shard.name, number, case, kernels.get(case, "Add"), tried)
            for case, tried in session.items()
        ]
        measurements += [
            filed_of(made, plan, shard.name, number, requested[case], tried)
            for case, tried in session.items()
            if tried.ran and case in requested
        ]
        sessions.append(measurements)
    commit_sessions(store, made, plan, shard, sessions, usage)


def commit_sessions(
    store: Store,
    made: MadePlan,
    plan: Plan,
    shard: MadeShard,
    sessions: Sequence[Sequence[Measurement]],
    usage: Usage = NO_USAGE,
    first: int = 0,
) -> None:
    """Write parts, manifest and commit, in the order of a worker. The last measurement of each case
    is final. `usage` is that of each session, `first` the number of the first one."""
    entries, final = [], dict[str, str]()
    for number, measurements in enumerate(sessions, first):
        final |= {m.case_id: m.measurement_id for m in measurements if not m.is_filed}
        key = keys.part(made.campaign, shard.name, made.attempt, number)
        raw = _raw(store, made, shard.name, number)
        entries.append(PartEntry(_stored(store, key, part_bytes(measurements)), raw, usage))
    manifest = AttemptManifest(
        campaign=made.campaign,
        plan=made.number,
        plan_hash=plan.plan_hash,
        shard=shard.name,
        attempt=made.attempt,
        node=made.node,
        collector_version="0",
        parts=tuple(entries),
        final=final,
    )
    key = keys.attempt_manifest(made.campaign, shard.name, made.attempt)
    stored = _stored(store, key, manifest_to_json(manifest))
    commit = ShardCommit(shard.name, made.attempt, stored, nonce="made")
    create_once(store, keys.committed(made.campaign, shard.name), shard_commit_to_json(commit))


def _raw(store: Store, made: MadePlan, shard: str, session: int) -> tuple[StoredObject, ...]:
    where = (made.campaign, shard, made.attempt, session)
    named = (keys.raw_summary(*where), keys.raw_journal(*where)) if made.raw else ()
    return tuple(_stored(store, key, made.raw) for key in named)


def measurement_of(
    made: MadePlan, plan: Plan, shard: str, session: int, case: str, kernel: str, tried: Tried
) -> Measurement:
    mean_us = None if tried.ran else tried.mean_us
    failure = Outcome.SUBSTITUTED if tried.ran else tried.outcome
    return Measurement(
        case_id=case,
        kernel_type=kernel,
        outcome=failure if mean_us is None else Outcome.OK,
        reason="" if mean_us is not None else tried.reason,
        provenance=Provenance(
            campaign=made.campaign,
            plan=made.number,
            plan_hash=plan.plan_hash,
            head_commit=made.head_commit,
            shard=shard,
            attempt=made.attempt,
            session=session,
            stack_id=made.whole_stack.stack_id,
            node=made.node,
            device_serial=None,
            rank=0,
            runtime=made.runtime,
            image_digest=None,
            collector_version="0",
            raw_key=keys.raw_summary(made.campaign, shard, made.attempt, session)
            if made.raw
            else None,
        ),
        timing=None if mean_us is None else _timing(mean_us, tried.outlier_share),
        cache=tried.cache or made.cache,
        n_observed=tried.n_observed,
        n_accepted=tried.n_accepted,
        timed_by=tried.timed_by,
        counters=tried.counters,
        warnings=tried.warnings,
        disturbance=tried.disturbance,
        canaries=tried.canaries,
        library=tried.library,
        assumes=tried.assumes,
        profiler_floor_us=tried.profiler_floor_us,
    )


def _timing(mean_us: float, outlier_share: float) -> Timing:
    """Return a timing whose outliers, if there are any, take ten times as long."""
    untrimmed_us = mean_us * (1 + 9 * outlier_share) if outlier_share else 0.0
    return Timing(*[mean_us] * 7, 0.01, outlier_share, untrimmed_us)


def filed_of(
    made: MadePlan, plan: Plan, shard: str, session: int, requested: CaseRecord, tried: Tried
) -> Measurement:
    """Return the measurement of the kernel that ran instead."""
    ran = as_ran(requested, tried.ran, tried.state, tried.core, tried.recorded)
    good = measurement_of(
        made, plan, shard, session, ran.case_id, tried.ran, replace(tried, ran="")
    )
    return replace(
        good,
        asked=requested.case_id,
        op_state=tried.state,
        core=tried.core,
        recorded=tried.recorded,
        identity=Proof.PROVED,
    )


def part_bytes(measurements: Sequence[Measurement]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_row(measurement) for measurement in measurements)
    return out.getvalue().encode()


def _stored(store: Store, key: str, data: bytes) -> StoredObject:
    create_once(store, key, data)
    return StoredObject(key, len(data), sha256_hex(data))


def state_of(*plans: MadePlan) -> State:
    """Return what the results of plans of one store are together."""
    store = MemoryStore()
    written = [write_campaign(store, one) for one in plans]
    return join_all(read_results(store, one).state for one in written)
