"""Durations in a run compared with isolated ones, and the explained step."""

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import BASE_CELLS
from collector.profiles.step_trace import StepTrace
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from collector.report.comparison import (
    Isolated,
    by_kernel,
    compare_cases,
    m6,
    static_gains,
    step_sum,
)

pytestmark = pytest.mark.fast


def record(kernel, rows, count, mean_us):
    cells = (f"{rows},8;{rows},8", "FLOAT;FLOAT", "ND;ND", f"{rows},8", "FLOAT", "ND")
    if kernel.startswith("MatMul"):
        cells = (f"{rows},8;8,8", "FLOAT;FLOAT", "ND;ND", f"{rows},8", "FLOAT", "ND")
    reported = dict(zip(BASE_CELLS[2:], cells, strict=True)) | dict.fromkeys(BASE_CELLS[:2], "")
    return CaseRecord(kernel, reported, {}, ProfileStatistics(count, mean_us, mean_us, 0.0))


def message(count, mean_us):
    one = Collective("all_reduce", 4096, "bfloat16", 2, 0)
    found = CollectiveCase(one, Grid((1, 2)), 2, "kernel", "").record()
    return CaseRecord(
        found.kernel_type, found.cells, found.extra, ProfileStatistics(count, mean_us, mean_us, 0.0)
    )


def apart(one, mean_us):
    return {one.case_id: Isolated(mean_us)}


def test_step_time_equals_a_sum_by_hand():
    """Ten adds of 6 us that take 5 isolated, two products of 40 us that are unknown, three messages
    of 30 us of which 20 are isolated; the device computed 130 us, 10 less than its kernels took,
    and 80 of 90 us of messages were not overlapped."""
    add, product, sent = record("Add", 4, 10, 6.0), record("MatMulV2", 4, 2, 40.0), message(3, 30.0)
    found = compare_cases((add, product, sent), apart(add, 5.0) | apart(sent, 20.0), {})
    trace = StepTrace(1, computing_us=130.0, communication_us=80.0, free_us=15.0)
    reported = step_sum(found, trace)
    assert dict(reported.parts) == {
        "isolated": 50.0,
        "neighbours": 0.0,
        "context": 10.0,
        "unknown": 80.0,
        "overlap": -10.0,
        "messages": 60.0,
        "waiting": 20.0,
        "host": 15.0,
    }
    assert reported.measured_us == fsum(part for _, part in reported.parts) == 225.0
    # After the launches before them the adds take 5.8 us; for the others that is unknown.
    behind = compare_cases((add, product, sent), apart(add, 5.0), {}, apart(add, 5.8))
    parts = step_sum(behind, trace)
    assert (parts.isolated_us, parts.neighbours_us, parts.context_us) == pytest.approx((50, 8, 2))
    known = m6(found, trace, lambda record: 7.0)
    assert (known.covered, known.forecast, known.isolated) == pytest.approx(
        (150 / 210, (50 + 60 + 14) / 210, 110 / 210)
    )


_TIMES = st.floats(0.01, 1e6)


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.integers(1, 99), _TIMES, st.none() | _TIMES), max_size=9),
    st.lists(st.tuples(st.integers(1, 99), _TIMES, st.none() | _TIMES), max_size=1),
    st.tuples(*[st.floats(0, 1e7)] * 3),
)
def test_parts_sum_to_the_step_for_any_known_times(kernels, messages, steps):
    rows = [(record("Add", 4 + at, n, us), known) for at, (n, us, known) in enumerate(kernels)]
    rows += [(message(n, us), known) for n, us, known in messages]
    isolated = {one.case_id: Isolated(known) for one, known in rows if known is not None}
    trace = StepTrace(1, *steps)
    reported = step_sum(compare_cases((one for one, _ in rows), isolated, {}), trace)
    assert fsum(part for _, part in reported.parts) == pytest.approx(trace.whole_us, abs=1e-3)
    assert (
        min(reported.isolated_us, reported.unknown_us, reported.messages_us, reported.waiting_us)
        >= -1e-6
    )


def test_time_of_a_twin_is_used_for_the_kernel_that_the_runtime_chose():
    found = compare_cases(
        (record("MatMulV3", 4, 1, 9.0),), apart(record("MatMulV2", 4, 1, 1.0), 6.0), {}
    )
    assert (found[0].kernel_type, found[0].ratio) == ("MatMulV2", 1.5)


def test_case_without_an_isolated_time_has_a_reason():
    tried, other = record("Add", 4, 1, 9.0), record("Add", 5, 1, 9.0)
    found = compare_cases((tried, other), {}, {tried.case_id: "oom"})
    assert [one.why for one in found] == ["oom", "missing"]
    (row,) = by_kernel(found)
    assert row.ratios is None and row.compared_us == 0.0 and row.launches == 2


def test_ratios_are_weighted_by_launches():
    """Of a hundred launches five take ten times the isolated duration, and the others half."""
    many, few = record("Add", 4, 95, 1.0), record("Add", 5, 5, 20.0)
    found = compare_cases((few, many), apart(many, 2.0) | apart(few, 2.0), {})
    (row,) = by_kernel(found)
    assert row.ratios == (0.5, 0.5, 0.5)
    assert (row.cases, row.launches, row.in_situ_us, row.isolated_us) == (2, 100, 195.0, 200.0)


def test_run_without_kernels_has_no_m6():
    assert m6((), StepTrace(1, 0.0, 0.0, 9.0), lambda record: 0.0) is None


def test_case_of_unknown_op_state_has_the_time_of_the_only_known_one():
    unknown = record("Add", 4, 10, 6.0)
    dynamic, static = (
        CaseRecord("Add", {**unknown.cells, "OP State": state}, {})
        for state in ("dynamic", "static")
    )
    times = [apart(dynamic, 5.0), apart(static, 4.0), apart(dynamic, 5.0) | apart(static, 4.0)]
    found = [compare_cases((unknown,), one, {})[0].isolated for one in times]
    assert [one and one.mean_us for one in found] == [5.0, 4.0, None]


def test_static_kernels_are_compared_with_dynamic_ones_by_their_launches():
    def in_state(one, state):
        return CaseRecord(one.kernel_type, {**one.cells, "OP State": state}, {}, one.profile)

    small, large, alone = (
        record("Add", 4, 10, 6.0),
        record("Add", 8, 2, 9.0),
        record("Mul", 4, 1, 1.0),
    )
    times = {
        in_state(small, "dynamic").case_id: Isolated(5.0),
        in_state(small, "static").case_id: Isolated(4.0),
        in_state(large, "dynamic").case_id: Isolated(10.0),
        in_state(large, "static").case_id: Isolated(12.0),
        in_state(alone, "static").case_id: Isolated(1.0),
    }
    # The profile has no state, or ran with either kernel.
    for states in (("", ""), ("dynamic", "static")):
        profile = [in_state(small, states[0]), in_state(large, states[1]), alone]
        (gain,) = static_gains(profile, times)
        assert (gain.kernel_type, gain.cases, gain.launches) == ("Add", 2, 12)
        assert (gain.dynamic_us, gain.static_us) == (70.0, 64.0)
        assert gain.gain == pytest.approx(6 / 70)
