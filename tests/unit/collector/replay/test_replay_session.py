"""Real sessions of tiny operators: the outcome of each kind of case."""

import json
import re
from dataclasses import replace

import pytest

from collector.model.measurement import Companion, Outcome
from collector.model.plan import MeasureSettings
from collector.model.row import from_row, to_row
from collector.profiles.launches import read_op_summary
from collector.quality.reconcile import SENTINEL_TYPE
from collector.replay.journal import JOURNAL, read_journal
from collector.replay.results import collect_session
from collector.replay.supervisor import Ending, run_session
from tests.unit.collector.naming import names
from tests.unit.collector.replay.conftest import ran, spec_of
from tests.unit.collector.replay.replay_cases import (
    PROVENANCE,
    add_record,
    by_kernel,
    case_record,
)

pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")
pytestmark = pytest.mark.torch


def test_every_kind_of_case_gets_its_outcome(session_of, tmp_path):
    square = ("4,4", "4,4")
    spec = session_of(
        add_record(8),
        case_record("NoSuchKernel", *square),
        case_record("Mul", "4,4;3,3", "4,4"),
        case_record("Fail", *square),
        case_record("AllocateTooMuch", *square),
        case_record("TwoSteps", "4000000,1000000", "4000000,1000000"),
        case_record("NotFinite", *square),
        case_record("OtherShape", *square),
        case_record("Companion", *square),
        case_record("Sub", "4,4;4,4", "4,4"),
    )
    report = run_session(spec, tmp_path)
    assert (report.ending, report.offender) == (Ending.COMPLETE, None), report.log_tail
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    found = by_kernel(result.measurements)
    assert {name: m.outcome for name, m in found.items()} == {
        "Add": Outcome.OK,
        "NoSuchKernel": Outcome.UNSUPPORTED,
        "Mul": Outcome.REJECTED,
        "Fail": Outcome.FAILED,
        "AllocateTooMuch": Outcome.OOM,
        "TwoSteps": Outcome.OOM,
        "NotFinite": Outcome.GATED,
        "OtherShape": Outcome.REJECTED,
        "Companion": Outcome.OK,
        "Sub": Outcome.OK,
    }
    assert names(found["Fail"].reason, "ValueError", "this operator raises")
    assert names(found["TwoSteps"].reason, "56 GiB")
    assert names(found["NotFinite"].reason, "output 0")
    assert found["NotFinite"].timing is not None
    assert names(found["OtherShape"].reason, "output 0", "4 torch.float32", "4,4 FLOAT")
    (companion,) = found["Companion"].companions
    assert replace(companion, mean_us=0.0) == Companion("aten::cumsum", 1, 0.0)
    for name in ("Add", "Companion", "Sub"):
        _is_well_measured(found[name], repeats=5)
    assert all(from_row(to_row(m)) == m for m in result.measurements)
    assert 0 < result.useful_us < result.busy_us
    assert 0 < report.startup_s < report.wall_s


def test_launches_of_the_summary_are_those_of_the_journal(session_of, tmp_path):
    spec = session_of(*(add_record(rows) for rows in range(1, 71)))
    report = run_session(spec, tmp_path)
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    assert all(m.timing is not None for m in result.measurements)
    journal = read_journal(tmp_path / JOURNAL)
    # 64 cases fill a window: the rest are in the next one.
    assert [len(window.ordinals) for window in journal.windows] == [64, 6]
    assert sorted(path.name for path in tmp_path.glob("slice-*")) == [
        window.slice for window in journal.windows
    ]
    rows = list(read_op_summary(result.summary))
    # The time that both windows record without work, which is less than that of any operator.
    floors_us = {m.profiler_floor_us for m in result.measurements}
    assert len(floors_us) == 1
    assert 0 < floors_us.pop() < min(m.timing.min_us for m in result.measurements)
    issued = sum(case.launches for case in journal.cases.values())
    assert sum(row.op_type == "Add" for row in rows) == issued
    assert sum(row.op_type == SENTINEL_TYPE for row in rows) == 2 * len(spec.cases)
    assert {row.cells["Input Data Types"] for row in rows if row.op_type == "Add"} == {
        "FLOAT;FLOAT"
    }


def test_cache_flush_is_neither_a_launch_nor_a_companion(session_of, tmp_path):
    measure = MeasureSettings(repeat_count=4, cache="cold")
    spec = session_of(add_record(8), case_record("TwoSteps", "9,9", "9,9"), measure=measure)
    report = run_session(spec, tmp_path)
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    for measurement in result.measurements:
        assert measurement.cache == "cold"
        _is_well_measured(measurement, repeats=4)
        assert measurement.companions == ()
        # The flush moves more than the last-level cache; the operator a few KB.
        assert measurement.timing.median_us < 2000
    rows = read_op_summary(result.summary)
    assert "aten::add_" not in {row.op_type for row in rows}


def test_budget_determines_the_repeats(session_of, tmp_path):
    spec = session_of(
        add_record(2),
        case_record("TwoSteps", "3000,1000", "3000,1000"),
        measure=MeasureSettings(budget_s=0.05, min_repeats=3, max_repeats=20),
    )
    report = run_session(spec, tmp_path)
    result = collect_session(spec, tmp_path, report, PROVENANCE)
    small, large = result.measurements
    # More of them if another process occupied a core.
    assert small.n_expected == 20 or small.disturbance.clean < small.disturbance.watched
    assert small.n_expected >= 20
    assert large.n_expected >= 3
    entry = read_journal(tmp_path / JOURNAL).cases[1]
    assert entry.launches > entry.repeats == large.n_expected


def _is_well_measured(measurement, *, repeats: int) -> None:
    assert measurement.outcome is Outcome.OK
    assert measurement.reason == ""
    assert measurement.n_expected == measurement.n_observed == repeats
    assert 1 <= measurement.n_accepted <= repeats
    assert measurement.timing.min_us > 0
    assert measurement.core == "AI_VECTOR_CORE"
    assert "" < measurement.started_at <= measurement.ended_at


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return ran(spec_of(add_record(3)), tmp_path_factory.mktemp("plain"))


def test_files_in_the_working_directory_are_not_imported(plain):
    assert plain.report.ending is Ending.COMPLETE, plain.report.log_tail


def test_journal_is_json_lines(plain):
    lines = (plain.directory / JOURNAL).read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    steps = [event for event in events if event != "heartbeat"]
    assert steps == ["start", "ready", "begin", "phase", "phase", "end", "window", "finish"]


@pytest.fixture(scope="module")
def in_context(tmp_path_factory):
    """Cases after few launches, after none, and after many."""
    own, two = add_record(8), case_record("TwoSteps", "8,64", "8,64")
    unknown = case_record("NoSuchKernel", "4,4", "4,4")
    spec = spec_of(
        replace(own, before=(own, two, unknown, own)),
        replace(case_record("Sub", "8,64;8,64", "8,64"), before=(own,)),
        two,
        replace(two, before=(unknown,)),
        *(replace(add_record(rows), before=(add_record(1),) * 40) for rows in (2, 3, 4)),
        measure=MeasureSettings(repeat_count=4, cache="context"),
    )
    return ran(spec, tmp_path_factory.mktemp("context"))


def test_launches_before_a_case_precede_each_repeat_and_are_not_part_of_it(in_context):
    result = in_context.result
    behind_itself, other, alone, behind_nothing = result.measurements[:4]
    for measured in (behind_itself, other):
        _is_well_measured(measured, repeats=4)
        assert (measured.cache, measured.companions) == ("context", ())
    assert names(behind_itself.context, "3 launches", "0.0 MiB", "NoSuchKernel")
    assert re.search(r"\b[0-9a-f]{12}\b", behind_itself.context)
    assert re.match("1 launch", other.context) and "NoSuchKernel" not in other.context
    assert [m.outcome for m in (alone, behind_nothing)] == [Outcome.REJECTED] * 2
    assert names(alone.reason, "cache: context") and "NoSuchKernel" not in alone.reason
    assert names(behind_nothing.reason, "cache: context", "NoSuchKernel")
    rows = [row.op_type for row in read_op_summary(result.summary)]
    launches = read_journal(in_context.directory / JOURNAL).cases[0].launches
    first = rows[rows.index(SENTINEL_TYPE) :][: 1 + 5 * launches]
    # The mark of each repeat, the three launches before the case, and the case.
    assert [kind for kind in first[1:] if kind != SENTINEL_TYPE] == [
        "Add",
        "TwoSteps",
        "Add",
        "Add",
    ] * launches
    assert all(from_row(to_row(m)) == m for m in result.measurements)


def test_context_launches_count_towards_the_profiler_window(in_context):
    """Of at least 64 launches: 4 and 2, and twice 41; refused cases are in none."""
    assert all(m.is_good for m in in_context.result.measurements[4:])
    journal = read_journal(in_context.directory / JOURNAL)
    assert [len(window.ordinals) for window in journal.windows] == [4, 1]
