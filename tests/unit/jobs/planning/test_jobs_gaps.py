"""The share of the sources' time that can be measured, and which rule is the obstacle for the
rest."""

from dataclasses import replace

import pytest

from collector.model.plan import PlannedSource, plan_from_json, plan_to_json
from collector.ops.refusals import NO_INPUTS, NO_OPERATOR
from jobs.planning.candidates import distinct_cases, only_operators
from jobs.planning.gaps import find_gaps, planned_shares, refused_cases, share_line, shares
from tests.unit.jobs.planning.test_jobs_plan_making import OPERATORS, plan, record, request
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

SOURCE = PlannedSource(
    "profile", "0" * 64, 5, same_stack=False, communication_us=645.0, compute_us=355.0
)
RECORDS = (
    record(count=1, mean_us=96.0),
    record("Nobody", "1", count=3, mean_us=50.0),
    record("Nobody", "2", count=2, mean_us=50.0),
    record("Odd", count=1, mean_us=1.0),
    record("Add", "N/A", count=4, mean_us=2.0),
)


def found(*records, source=SOURCE, operators=None):
    candidates = only_operators(distinct_cases([(source, tuple(records))]), operators)
    refused = refused_cases(candidates, OPERATORS.get, "cpu", 1, "warm", "")
    own = shares(candidates, [one.candidate for one in refused])
    return find_gaps(refused), share_line(own, [source])


def test_gaps_are_sorted_by_time_with_their_rule_and_largest_case():
    reported, _ = found(*RECORDS)
    assert [(gap.kernel_type, gap.rows, gap.time_us) for gap in reported] == [
        ("Nobody", 5, 250.0),
        ("Add", 4, 8.0),
        ("Odd", 1, 1.0),
    ]
    whys = [gap.cases[0].refusal.why for gap in reported]
    assert whys[:2] == [NO_OPERATOR, NO_INPUTS]
    assert [case.candidate.weight.time_us for case in reported[0].cases] == [150.0, 100.0]
    odd = reported[2]
    assert odd.reason == f"{whys[2]}: {odd.cases[0].candidate.record.case.describe()}"


def test_plan_keeps_the_shares_of_all_its_sources():
    _, line = found(*RECORDS)
    fresh = plan(request(*RECORDS, source=SOURCE)).plan
    assert share_line(planned_shares(fresh), fresh.sources) == line
    requested = replace(
        request(*RECORDS, source=SOURCE),
        cases_to_repeat={RECORDS[0].case_id: ""},  # a plan of one case only
    )
    repeated = plan(requested).plan
    assert share_line(planned_shares(repeated), repeated.sources) == line
    again = plan_from_json(plan_to_json(fresh))
    assert again == fresh and planned_shares(again) == planned_shares(fresh)


def test_cases_under_one_rule_are_one_gap_and_under_two_are_two():
    reported, _ = found(*RECORDS, record("Odd", "3", count=1, mean_us=3.0))
    assert [len(gap.cases) for gap in reported if gap.kernel_type == "Odd"] == [2]


def test_shares_separate_compute_communication_and_unknown_inputs():
    _, line = found(*RECORDS)
    assert numbers(line) == ["27.0", "2.3", "35.5", "64.5"] and "opmeter comm" in line
    alone = replace(SOURCE, communication_us=0.0)
    _, line = found(record(count=1, mean_us=96.0), source=alone)
    assert numbers(line) == ["100.0"] and "opmeter comm" not in line


def test_share_of_computing_is_that_of_whole_sources_for_a_campaign_of_some_operators():
    _, line = found(*RECORDS, operators=frozenset({"Odd", "Add"}))
    assert numbers(line) == ["91.4", "7.6", "35.5", "64.5"]


def test_sources_without_times_have_no_shares():
    reported, line = found(record(count=0), source=replace(SOURCE, communication_us=0.0))
    assert (reported, line) == ((), "")
