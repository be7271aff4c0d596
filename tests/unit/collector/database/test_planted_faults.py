"""Faults, each planted where it occurs in a small campaign, and each stopped before publication;
the same campaign without it shows every duration.

The parts are real: the output of msprof and the session's journal are read by the worker, and
published from a store through merge and view.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from collector.database.layout import AVERAGE_DURATION
from collector.database.merge import CREATE, merge_plans
from collector.database.query import best_rows
from collector.database.snapshot import load_state
from collector.database.state import State
from collector.database.verify import find_problems
from collector.model import keys
from collector.model.case import case_from_cells
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.plan import Limits, MeasureSettings, Plan, plan_to_json
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack
from collector.quality.gates import gate_of_outcome
from collector.quality.reconcile import SENTINEL_TYPE, Mark, Sentinel
from collector.replay.certificates import with_canaries
from collector.replay.journal import JOURNAL, MEASURED, JournalWriter
from collector.replay.msprof import OUTPUT, SummaryRow, write_summary
from collector.replay.results import collect_session
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, SessionReport
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    commit_sessions,
    plan_of,
    record_of_shapes,
    table_of,
)
from tests.unit.collector.database.forging import tree_key, tree_of

pytestmark = pytest.mark.fast

NPU = Stack(device="ATLAS_800_A2_376T_64G", torch="2.9.0", details=(("driver", "25.2"),))
OTHER_DRIVER = replace(NPU, details=(("driver", "25.3"),))
PATH = NPU.version_path
KERNEL = "MatMulV2"
DEVICES, SHARDS, OF_SHARD, REPEATS = 4, 8, 12, 6
CANARY_US = {"Add": 90.0, KERNEL: 450.0}


@dataclass(frozen=True)
class Launch:
    """A row of the op_summary, and the progress of the session when it begins: 0 to 1."""

    kernel: str
    cells: dict[str, str]
    us: float
    case: str = ""  # the case of the launch; none for a mark
    progress: float = 0.0


@dataclass(frozen=True)
class Planted:
    """A fault. `launches` changes what a profiler recorded of a shard, `part` what a worker wrote
    of it. It stops the durations of the cases in `stops`, counted under one of `gates`; if there
    are none their shard is refused with words like `refusal`."""

    stops: frozenset[str] = frozenset()
    gates: frozenset[str] = frozenset()
    refusal: str = ""
    launches: Callable[[int, list[Launch]], list[Launch]] = lambda shard, launches: launches
    part: Callable[[int, Sequence[Measurement]], Sequence[Measurement]] = lambda shard, part: part


@cache
def products() -> tuple[tuple[CaseRecord, float], ...]:
    """Return products, alternately with nearly no work and with 20 to 60 us of it, each with its
    time at half of a device's best rates after a launch of 5 us."""
    draw, found = np.random.default_rng(5), {}
    while len(found) < SHARDS * OF_SHARD:
        m, n, k = (2 ** draw.uniform(0, (5, 6, 6))).astype(int).tolist()
        if len(found) % 2:
            m, n, k = 100 * int(2 ** draw.uniform(0, 2)) + len(found), 4096, 4096
        record = record_of_shapes(KERNEL, f'"{m},{k};{k},{n}"', f'"{m},{n}"', core="AI_CORE")
        work_us = max(2 * m * n * k / 354e6, 2 * (m * k + k * n + m * n) / 1.7e6)
        found[record.case_id] = (record, 5 + 2 * work_us)
    return tuple(found.values())


def records_of(shard: int) -> list[CaseRecord]:
    return [record for record, _ in products()[shard * OF_SHARD : (shard + 1) * OF_SHARD]]


def ids_of(*shards: int) -> frozenset[str]:
    return frozenset(record.case_id for shard in shards for record in records_of(shard))


EVERY = ids_of(*range(SHARDS))
ONE = records_of(0)[3].case_id


def recorded(spec: SessionSpec, shard: int) -> list[Launch]:
    """Return what a profiler records of an intact session: its repeats scatter by 1 %."""
    draw, usual_us = np.random.default_rng(shard), {r.case_id: us for r, us in products()}
    found = []
    for ordinal, case in enumerate(spec.cases):
        record = case.record
        us = CANARY_US[record.kernel_type] if case.place else usual_us[record.case_id]
        progress = ordinal / (len(spec.cases) - 1)
        found.append(_mark(Mark.OPEN, ordinal))
        for scatter in draw.normal(1, 0.01, REPEATS):
            one = Launch(record.kernel_type, dict(record.cells), us * scatter, record.case_id)
            found.append(replace(one, progress=progress))
        found.append(_mark(Mark.CLOSE, ordinal))
    return found


def _mark(mark: Mark, ordinal: int) -> Launch:
    shape = ",".join(map(str, Sentinel(mark, ordinal).shape))
    return Launch(SENTINEL_TYPE, {"Input Shapes": shape}, 1.0)


def measured(plan: Plan, shard: int, planted: Planted, folder: Path) -> Sequence[Measurement]:
    """Return what a worker makes of one session."""
    cases = [SessionCase(record, 1.0, 60.0) for record in records_of(shard)]
    spec = SessionSpec(
        backend="npu",
        device=0,
        cases=with_canaries(cases, "npu", 60.0),
        measure=MeasureSettings(repeat_count=REPEATS),
        limits=Limits(),
        stack=NPU,
    )
    launches = planted.launches(shard, recorded(spec, shard))
    exported = folder / OUTPUT / "PROF_1" / "mindstudio_profiler_output"
    exported.mkdir(parents=True)
    rows = (
        SummaryRow("x", one.kernel, one.cells, 10**12 + at, round(one.us * 1000))
        for at, one in enumerate(launches)
    )
    write_summary(rows, exported / "op_summary_1.csv")
    writer = JournalWriter(folder / JOURNAL)
    for ordinal, case in enumerate(spec.cases):
        writer.write("begin", ordinal=ordinal, case=case.record.case_id, time="t0")
        writer.write("end", ordinal=ordinal, time="t1", outcome=MEASURED, repeats=REPEATS)
    report = SessionReport(Ending.COMPLETE, "", None, 1.0, "")
    return collect_session(spec, folder, report, _provenance(plan, shard)).measurements


def _provenance(plan: Plan, shard: int) -> Provenance:
    return Provenance(
        *(plan.campaign, plan.number, plan.plan_hash, plan.head_commit, f"s{shard}", "attempt-1"),
        *(0, plan.stack.stack_id, "node-1", f"serial-{shard % DEVICES}", 0, Runtime.REAL),
        *(None, "0", None),
    )


def published(planted: Planted, folder: Path) -> tuple[State, dict[str, str], list[str]]:
    """Return the state that a merge of such a campaign publishes, the shown duration of each case,
    and the refusals."""
    store = MemoryStore()
    shards = [MadeShard(f"s{shard}", records_of(shard)) for shard in range(SHARDS)]
    made = MadePlan(shards, stack=NPU)
    plan = plan_of(made)
    store.create(keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    for number, shard in enumerate(shards):
        store.create(keys.shard(plan.campaign, shard.name), table_of(shard))
        part = measured(plan, number, planted, folder / shard.name)
        commit_sessions(store, made, plan, shard, [planted.part(number, part)])
    merged = merge_plans(store, [made.name], guard=CREATE, author="test")
    assert find_problems(store) == []
    return (
        load_state(store, merged.head),
        durations(store, merged.head),
        [damage.reason for damage in merged.damaged],
    )


def durations(store, head) -> dict[str, str]:
    """Return the values in the published files, by case."""
    found = {}
    for path in tree_of(store, head.number):
        data = store.get(tree_key(store, head, path)).decode()
        for row in csv.DictReader(io.StringIO(data, newline="")):
            if row.get(AVERAGE_DURATION):
                found[case_from_cells(Path(path).stem, row).case_id] = row[AVERAGE_DURATION]
    return found


def timed(*shards: int, how: Callable[[Launch], float]) -> Callable[..., list[Launch]]:
    """Any launch of these shards takes another time, including marks."""

    def change(shard: int, launches: list[Launch]) -> list[Launch]:
        return [replace(one, us=how(one)) for one in launches] if shard in shards else launches

    return change


def another_kernel(shard: int, launches: list[Launch]) -> list[Launch]:
    return [replace(one, kernel="MatMulV3") if one.case == ONE else one for one in launches]


def one_launch_lost(shard: int, launches: list[Launch]) -> list[Launch]:
    lost = next((at for at, one in enumerate(launches) if one.case == ONE), len(launches))
    return launches[:lost] + launches[lost + 1 :]


def first_case_twice(shard: int, part: Sequence[Measurement]) -> Sequence[Measurement]:
    first = part[0]
    again = replace(first, timing=replace(first.timing, median_us=first.timing.mean_us))
    return [*part, again] if shard == 0 else part


def of_another_driver(shard: int, part: Sequence[Measurement]) -> Sequence[Measurement]:
    if shard != 1:
        return part
    foreign = OTHER_DRIVER.stack_id
    return [replace(m, provenance=replace(m.provenance, stack_id=foreign)) for m in part]


ALL = range(SHARDS)
SLOW = [shard for shard in ALL if shard % DEVICES == 3]  # those that device 3 measures
BAND = frozenset({"canary band"})
FAULTS = {
    "host-bound table": Planted(
        EVERY, frozenset({"host time"}), launches=timed(*ALL, how=lambda one: max(one.us, 60.0))
    ),
    "halved clock on one device": Planted(
        ids_of(*SLOW), BAND, launches=timed(*SLOW, how=lambda one: 2 * one.us)
    ),
    "wrong kernel": Planted(frozenset({ONE}), frozenset({"identity"}), launches=another_kernel),
    "dropped records": Planted(
        frozenset({ONE}), frozenset({"reconciliation"}), launches=one_launch_lost
    ),
    "ms for us": Planted(
        EVERY,
        frozenset({"unit", "floor"}),
        launches=timed(*ALL, how=lambda one: one.us / 1000),
    ),
    "duplicate case": Planted(ids_of(0), refusal="measurement", part=first_case_twice),
    "mixed stacks": Planted(ids_of(1), refusal="stack_id", part=of_another_driver),
    "a throttle": Planted(
        ids_of(2), BAND, launches=timed(2, how=lambda one: one.us * (1 + 0.4 * one.progress))
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_stopped_before_publication(name, tmp_path):
    fault = FAULTS[name]
    state, shown, refused = published(fault, tmp_path)
    assert fault.stops and EVERY & shown.keys() == EVERY - fault.stops
    if fault.refusal:
        assert len(refused) == 1 and fault.refusal in refused[0]
        return
    best = best_rows(state, PATH).select(["case", "outcome", "reason"]).to_pylist()
    held = {row["case"]: gate_of_outcome(Outcome(row["outcome"]), row["reason"]) for row in best}
    by = {held[case] for case in fault.stops}
    assert by <= fault.gates, "another gate refused it, or quality/gates.py lacks the reason"
    assert refused == []
    assert fault.stops <= set(state.measurements["case"].to_pylist())  # stored, and not shown


@pytest.mark.thorough
def test_database_without_planted_faults_shows_every_duration(tmp_path):
    _, shown, refused = published(Planted(), tmp_path)
    assert shown.keys() == EVERY and refused == []
    usual_us = {record.case_id: us for record, us in products()}
    assert all(float(shown[case]) == pytest.approx(usual_us[case], rel=0.03) for case in EVERY)
