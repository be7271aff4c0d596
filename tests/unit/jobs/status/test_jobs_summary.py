"""The final lines of a run are about the cases of its plan, on its own stack."""

import csv
import io
import re
from dataclasses import replace

import pytest

from collector.database.merge import CREATE, merge_plans
from collector.database.snapshot import load_state
from collector.database.view import render
from collector.model.manifest import NO_USAGE, Usage
from collector.model.measurement import Disturbance, Outcome
from collector.model.record import ProfileStatistics
from collector.store.in_memory import MemoryStore
from jobs.status.lines import describe_summary
from jobs.status.summary import NewMeasurements, summarise_state
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    plan_of,
    write_campaign,
)
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

FAST, SLOW, MUL = add_record(1), add_record(2), add_record(3, kernel="Mul")
SEEN = {FAST.case_id: (3, 2.0), SLOW.case_id: (1, 10.0), MUL.case_id: (6, 1.0)}
MADE = MadePlan([MadeShard("s", [FAST, SLOW], [{FAST.case_id: Tried(5.0), SLOW.case_id: Tried()}])])


def seen(record):
    count, mean_us = SEEN[record.case_id]
    return replace(record, profile=ProfileStatistics(count, mean_us, mean_us, 0.0))


SOURCE = [seen(record) for record in (FAST, SLOW, MUL)]


def head_state(*plans):
    """The state after these plans, MADE alone by default, merged one after the other."""
    store = MemoryStore()
    for made in plans or (MADE,):
        write_campaign(store, made)
        merged = merge_plans(store, [made.name], guard=CREATE, author="a", sleep=lambda s: None)
    return load_state(store, merged.head)


def test_coverage_counts_rows_and_time_of_the_cases_of_the_plan():
    plan = replace(plan_of(MADE), operators=("Add",))
    summary = summarise_state(head_state(), plan, [SOURCE], NO_USAGE)
    assert (summary.cases, summary.measured_cases) == (2, 1)
    assert (summary.rows, summary.measured_rows) == (4, 3)
    assert (summary.time_us, summary.measured_time_us) == (16.0, 6.0)
    (failure,) = summary.failures
    assert (failure.kernel_type, failure.outcome, failure.rows) == ("Add", Outcome.FAILED, 1)


def test_untried_case_is_missing():
    summary = summarise_state(head_state(), plan_of(MADE), [SOURCE], NO_USAGE)
    assert summary.cases == 3
    assert [(f.kernel_type, f.outcome) for f in summary.failures] == [
        ("Add", Outcome.FAILED),
        ("Mul", "missing"),
    ]


def test_excluded_cases_of_a_plan_hide_no_failure():
    """Another campaign has measured one of the two cases that this plan left out, and failed at
    it."""
    summary = summarise_state(head_state(), plan_of(MADE), [SOURCE], NO_USAGE)
    assert summary.lacking(0) == 2
    assert summary.lacking(1) == summary.lacking(2) == 1


def test_case_with_a_duration_in_a_tree_is_not_missing():
    in_tree = replace(MUL, extra={"Average Duration(us)": "3.5"})
    plan = replace(plan_of(MADE), update="missing-only")
    summary = summarise_state(head_state(), plan, [[FAST, in_tree]], NO_USAGE)
    assert (summary.cases, summary.measured_cases, summary.in_tree) == (1, 1, 1)
    assert numbers(describe_summary(summary, plan, None, "file:///x")[2])[-1] == "1"
    assert summarise_state(head_state(), plan_of(MADE), [[in_tree]], NO_USAGE).cases == 1


def test_coverage_is_a_share_of_compute_time_and_communication_is_separate():
    plan = plan_of(MADE)
    (source,) = plan.sources
    plan = replace(plan, sources=(replace(source, communication_us=22.0 / 3, compute_us=22.0),))
    lines = describe_summary(
        summarise_state(head_state(), plan, [SOURCE], NO_USAGE), plan, None, "file:///x"
    )
    share = 100 * 6 / 22
    assert numbers(lines[2]) == ["1", "3", "30.0", f"{share:.1f}", "75.0", "25.0"]
    assert "opmeter comm" in lines[2]
    untimed = summarise_state(head_state(), plan_of(MADE), [[FAST]], NO_USAGE)
    line = describe_summary(untimed, plan_of(MADE), None, "file:///x")[2]
    assert "opmeter comm" not in line and numbers(line) == ["1", "1", "100.0"]  # no share of time
    alone = summarise_state(head_state(), plan_of(MADE), [SOURCE], NO_USAGE)
    line = describe_summary(alone, plan_of(MADE), None, "file:///x")[2]
    assert "opmeter comm" not in line and numbers(line) == ["1", "3", "30.0", f"{share:.1f}"]


def test_reason_is_printed_in_one_line_with_escaped_control_characters():
    reason = "the rule\nof \x1b[31mthis " + "long " * 200 + "end"
    made = MadePlan([MadeShard("s", [SLOW], [{SLOW.case_id: Tried(reason=reason)}])])
    plan = plan_of(made)
    lines = describe_summary(
        summarise_state(head_state(made), plan, [[SLOW]], NO_USAGE), plan, None, "file:///x"
    )
    message = "the rule of \\x1b[31mthis " + "long " * 200 + "end"
    assert lines[-2].endswith(f" {message}")


@pytest.mark.parametrize(
    ("outcome", "is_reported"),
    [(Outcome.HUNG, True), (Outcome.FAILED, True), (Outcome.UNSUPPORTED, False)],
)
def test_retryable_failure_is_shown_with_its_option(outcome, is_reported):
    tried = Tried(outcome=outcome, reason="why")
    made = MadePlan([MadeShard("s", [SLOW], [{SLOW.case_id: tried}])])
    plan, records = plan_of(made), [[SLOW], [MUL]]  # the second was not tried: no failure
    lines = describe_summary(
        summarise_state(head_state(made), plan, records, NO_USAGE), plan, None, "file:///x"
    )
    assert ("--retry-failed" in "\n".join(lines)) == is_reported


def lines_of(*disturbances, warnings=()):
    """The final lines of a run of this many cases, each with these warnings."""
    records = [add_record(rows) for rows in range(1, len(disturbances) + 1)]
    pairs = zip(records, disturbances, strict=True)
    tried = {
        record.case_id: Tried(5.0, disturbance=reported, warnings=warnings)
        for record, reported in pairs
    }
    made = MadePlan([MadeShard("s", records, [tried])])
    summary = summarise_state(head_state(made), plan_of(made), [records], NO_USAGE)
    return describe_summary(summary, plan_of(made), None, "file:///x")


QUIET, HELD = Disturbance(30, 30), Disturbance(30, 0, waited_share=0.5)


def test_permanently_busy_machine_is_reported_first():
    first, *_ = lines_of(QUIET, HELD, HELD)
    assert first.startswith("busy ") and numbers(first) == ["67", "2", "3"]
    first, *_ = lines_of(Disturbance(30, 5), Disturbance(30, 5))
    assert first.startswith("busy ") and numbers(first) == ["83", "0", "2"]
    first, *_ = lines_of(QUIET, Disturbance(30, 20), warnings=("the session was disturbed: why",))
    assert first.startswith("busy ") and numbers(first) == ["17", "0", "2"]


def test_single_disturbed_case_is_reported_among_the_rest():
    lines = lines_of(*[QUIET] * 19, HELD)
    assert lines[0].startswith("database")
    (line,) = [line for line in lines if line.startswith("disturbed ")]
    assert numbers(line) == ["5", "1", "20"]


def test_disturbed_measurements_that_replace_no_duration_are_reported_first():
    warning = "all 30 repeats were disturbed: threads waited for a core 50 % of the time"
    records = [add_record(rows) for rows in range(1, 5)]
    quiet = {record.case_id: Tried(5.0, disturbance=QUIET) for record in records[1:]}
    loud = {
        record.case_id: Tried(9.0, disturbance=HELD, warnings=(warning,)) for record in records[:3]
    }
    loud[records[3].case_id] = Tried(5.1, disturbance=QUIET)
    first = MadePlan([MadeShard("s", records[1:], [quiet])])
    again = MadePlan([MadeShard("t", records, [loud])], number=2, head_commit=1)
    state, plan = head_state(first, again), plan_of(again)
    summary = summarise_state(state, plan, [records], NO_USAGE)
    # The first case has no earlier duration, and shows the disturbed one.
    assert summary.new == NewMeasurements(since=2, count=4, disturbed=3, unused=2)
    line, *others = describe_summary(summary, plan, None, "file:///x")
    assert line.startswith("busy ") and numbers(line) == ["3", "4", "2", "2"]
    assert summarise_state(state, plan, [records], NO_USAGE, since=1).new.count == 7
    # Nothing is reported for a plan whose measurements are all shown, or undisturbed.
    for made in (MadePlan([MadeShard("s", records, [loud])]), first):
        summary = summarise_state(head_state(made), plan_of(made), [records], NO_USAGE)
        assert summary.new.unused == 0


def test_uncounted_second_measurements_are_reported():
    records = [add_record(rows) for rows in range(1, 4)]
    clean = {record.case_id: Tried(5.0) for record in records[1:]}
    warned = {record.case_id: Tried(6.0, warnings=("few repeats: 3",)) for record in records}
    warned[records[2].case_id] = Tried(5.1)
    first = MadePlan([MadeShard("s", records[1:], [clean])])
    again = MadePlan([MadeShard("t", records, [warned])], number=2, head_commit=1)
    state, plan = head_state(first, again), plan_of(again)
    summary = summarise_state(state, plan, [records], NO_USAGE)
    # The first case has no other duration; the second one keeps its own.
    assert summary.new == NewMeasurements(since=2, count=3, warned=1)
    (line,) = [
        line
        for line in describe_summary(summary, plan, None, "file:///x")
        if line.startswith("not counted ")
    ]
    assert numbers(line) == ["1", "3", "2"]
    assert summarise_state(state, plan_of(first), [records], NO_USAGE).new.warned == 0


@pytest.mark.thorough
def test_quiet_and_unwatched_machines_are_not_mentioned():
    gaps = Disturbance(0, 0, launch_gap_share=0.9)  # of a device that reports no more
    for lines in (lines_of(QUIET, Disturbance(30, 28)), lines_of(None, None), lines_of(gaps)):
        assert not any(line.startswith(("busy ", "disturbed ")) for line in lines)


def test_requested_precision_is_compared_with_the_recorded_one():
    made = MadePlan([MadeShard("s", [FAST, SLOW], [{FAST.case_id: Tried(5.0)}])])
    state, plan = head_state(made), plan_of(made)
    requested = replace(plan, measure=replace(plan.measure, precision=0.01))
    for one, message in ((plan, []), (requested, [["1", "1", "1"]])):
        lines = describe_summary(
            summarise_state(state, one, [SOURCE], NO_USAGE), one, None, "file:///x"
        )
        assert [numbers(line) for line in lines if line.startswith("precision ")] == message


def test_results_of_another_stack_are_not_counted():
    other = replace(plan_of(MADE), stack=replace(STACK, details=(("flags", "avx512f"),)))
    summary = summarise_state(head_state(), other, [[FAST]], NO_USAGE)
    assert summary.measured_cases == 0


def test_efficiency_is_relative_to_sessions_and_the_lower_bound_to_wall_time():
    plan = replace(plan_of(MADE), devices=4)
    usage = Usage(busy_us=30e6, useful_us=20e6, wall_s=40.0, startup_s=2.0)
    lines = describe_summary(
        summarise_state(head_state(), plan, [SOURCE], usage), plan, None, "file:///x"
    )
    lines = [line for line in lines if line.startswith(("efficiency", "time"))]
    assert numbers(lines[0]) == ["75.0", "50.0", "40", "2"]
    # Plan 1: 40 s on 4 devices, its forecast, and the lower bound in seconds and as a share.
    assert numbers(lines[1]) == ["1", "10", "1", "1", "10.0"]


def test_predicted_share_of_excluded_cases_is_reported():
    plan = plan_of(MADE)
    summary = summarise_state(head_state(), plan, [SOURCE], NO_USAGE)

    def sampling(**counts):
        reported = replace(plan, forecast=replace(plan.forecast, **counts))
        lines = describe_summary(summary, reported, None, "file:///x")
        return [line for line in lines if line.startswith("sampling ")]

    assert sampling() == []
    for unsure, message in ((700, ["750", "50"]), (0, ["750"]), (750, ["750"])):
        (line,) = sampling(left_out=750, unsure=unsure)
        assert numbers(line) == message
    assert sampling(left_out=750) != sampling(left_out=750, unsure=750)


def envelope_of(device, *means_us):
    records = [add_record(rows) for rows in (64, 128, 256)]
    session = {r.case_id: Tried(us) for r, us in zip(records, means_us, strict=True)}
    made = MadePlan([MadeShard("s", records, [session])], stack=replace(STACK, device=device))
    summary = summarise_state(head_state(made), plan_of(made), [records], NO_USAGE)
    lines = describe_summary(summary, plan_of(made), None, "file:///x")
    return [line for line in lines if line.startswith("envelope ")]


@pytest.mark.thorough
def test_kernel_with_delayed_launches_is_reported():
    """Every fourth launch waits 50 us; the twin without delays has no such line."""

    def disorder(delayed):
        timed = [(add_record(8 * at), 3 + at / 5) for at in range(1, 61)]
        session = {
            record.case_id: Tried(us + 50 * (delayed and at % 4 == 0))
            for at, (record, us) in enumerate(timed)
        }
        stack = replace(STACK, device="ATLAS_800_A2_376T_64G")
        records = [record for record, _ in timed]
        made = MadePlan([MadeShard("s", records, [session])], stack=stack)
        summary = summarise_state(head_state(made), plan_of(made), [records], NO_USAGE)
        lines = describe_summary(summary, plan_of(made), None, "file:///x")
        return [line for line in lines if line.startswith("disorder ")]

    assert disorder(delayed=False) == []
    [line] = disorder(delayed=True)
    assert "Add" in line and numbers(line) == ["15", "60"]


def test_reported_duration_is_the_mean_over_all_sessions():
    records = [add_record(rows) for rows in (64, 128)]
    first = {r.case_id: Tried(us) for r, us in zip(records, (90.0, 30.0), strict=True)}
    again = {records[0].case_id: Tried(70.0)}
    stack = replace(STACK, device="ATLAS_800_A2_376T_64G")
    shards = [MadeShard("s", records, [first]), MadeShard("t", records[:1], [again])]
    made = MadePlan(shards, stack=stack)
    state = head_state(made)
    [above] = summarise_state(state, plan_of(made), [records], NO_USAGE).envelope.above
    files = render(state)
    rows = csv.DictReader(io.StringIO(files[f"{stack.version_path}/Add.csv"].data.decode()))
    shown = {float(row["Average Duration(us)"]) for row in rows}
    assert {above.mean_us, above.larger_us} == shown and above.mean_us not in (90.0, 70.0)


def test_case_slower_than_a_larger_one_is_reported_with_it():
    (line,) = envelope_of("ATLAS_800_A2_376T_64G", 90.0, 30.0, 40.0)
    assert numbers(line)[:2] == ["1", "3"] and line.count("suspect") == 1
    above, larger = "Add 64,64;64,64 DT_BF16;DT_BF16", "Add 128,64;128,64"
    assert re.search(rf"{above}\D+90\.0 us.*{larger}.* 30\.0 us", line)


@pytest.mark.parametrize(
    ("device", "means_us"),
    [
        pytest.param("ATLAS_800_A2_376T_64G", (55.0, 30.0, 40.0), id="sawtooth"),
        pytest.param("CPU_test_2t", (90.0, 30.0, 40.0), id="threads start at a size"),
    ],
)
def test_sawtooth_and_cpu_cases_are_not_reported(device, means_us):
    assert envelope_of(device, *means_us) == []
