"""Campaigns that measure a part of their curves, round by round, and learn the rest."""

from dataclasses import replace
from functools import cache

import numpy as np

from collector.model.plan import plan_from_json, plan_to_json
from collector.model.record import CaseRecord
from collector.surfaces.rounds import Known, PointBudget, next_round
from jobs.planning.candidates import HeadResult
from jobs.planning.curve_cases import find_surfaces
from jobs.planning.gaps import describe_forecast
from jobs.planning.plan_making import inputs_hash, make_plan
from tests.unit.jobs.planning.test_jobs_plan_making import (
    OPERATORS,
    STACK,
    campaign,
    operator,
    plan,
    planned_ids,
    record,
    request,
)
from tests.unit.jobs.printed import numbers
from tests.unit.opmeter.made import recorded, version_of

SAMPLING = "sampling: {tolerance: 1%}\nquality: {repeat_share: 0}\n"
CURVE = [record("Add", f"{16 * (n + 1)},{8 * (n % 7 + 1)}") for n in range(1000)]
ALONE = [record("Mul", f"{n + 1},2") for n in range(5)]


def duration_us(found: CaseRecord) -> float:
    """The duration of a case: its work after a launch, and noise drawn from its id."""
    noise = np.random.default_rng(int(found.case_id[:8], 16)).normal(0, 0.03)
    return float((3 + found.case.inputs[0].numel / 500) * np.exp(noise))


def measured(ids, records):
    by_id = {found.case_id: found for found in records}
    return {case: HeadResult(True, duration_us(by_id[case])) for case in ids}


@cache
def first_round():
    """The first plan of a campaign of the curve alone, and the answers to its cases."""
    made = plan(request(*CURVE, more=SAMPLING))
    return made, measured(planned_ids(made), CURVE)


@cache
def to_the_end():
    return rounds()


def rounds(records=(*CURVE, *ALONE), more=SAMPLING):
    """All plans of a campaign up to the last one; each is measured."""
    answered, found = {}, []
    while not found or found[-1].plan.forecast.learning:
        requested = replace(
            request(*records, more=more), head_results=answered, number=len(found) + 1
        )
        found.append(plan(requested))
        ids = planned_ids(found[-1])
        assert not set(ids) & set(answered)
        answered |= measured(ids, records)
    return found, answered


def test_quarter_of_a_curve_is_measured_and_all_single_cases():
    found, answered = to_the_end()
    reported = [made.plan.forecast for made in found]
    assert [(f.learning, f.left_out) for f in reported] == [
        (160, 840),
        (50, 790),
        (40, 750),
        (0, 750),
    ]
    assert {one.case_id for one in ALONE} <= set(planned_ids(found[0]))
    assert len(answered) == 255 and not found[-1].plan.shards
    assert reported[0].unsure == 840 and reported[-1].unsure > 0
    assert all(f.cases + f.answered + f.left_out == 1005 for f in reported)


def test_fewer_points_are_measured_if_the_rest_is_known():
    found, answered = rounds(more=SAMPLING.replace("1%", "30%"))
    assert len(answered) == 165 and found[-1].plan.forecast.unsure <= 0.05 * 840


def test_query_keeps_what_the_last_round_promised():
    """Of the cases that are left out, a query of the measured ones has the durations that the round
    predicted, to the tolerance of the campaign, and intervals that cover the true ones."""
    _, answered = rounds(CURVE, more=SAMPLING.replace("1%", "30%"))
    (surface,) = find_surfaces(
        ((one.case_id, one.case) for one in CURVE), OPERATORS.get, "cpu", least=1
    )
    results = [answered.get(case) for case in surface.case_ids]
    budget = PointBudget(250)
    known = Known(
        np.array([result is not None for result in results]),
        np.array([result.mean_us if result else np.nan for result in results]),
        np.arange(len(results)) < budget.checks,
    )
    last = next_round(surface.points, known, budget, 0.3)
    assert not len(last.points_to_measure)
    by_id = {one.case_id: one for one in CURVE}
    version = version_of([recorded(by_id[case], answered[case].mean_us) for case in answered])
    differences, errors, is_covered = [], [], []
    for at in np.flatnonzero(~known.requested).tolist():
        found = by_id[surface.case_ids[at]]
        answer = version.query("Add", [slot.shape for slot in found.case.inputs], "FLOAT")
        if answer.reason is None:
            differences.append(abs(np.log(answer.value_us) - last.estimate.log_us[at]))
            errors.append(abs(answer.value_us / duration_us(found) - 1))
            is_covered.append(answer.low_us <= duration_us(found) <= answer.high_us)
    assert len(errors) > 0.95 * np.sum(~known.requested)
    assert np.median(differences) < 0.02 and np.quantile(differences, 0.95) < 0.1
    assert np.mean(np.array(errors) <= 0.3) > 0.95
    assert 0.92 < np.mean(is_covered) <= 1.0


def test_equal_results_give_the_same_round():
    requested, (_, answers) = request(*CURVE, more=SAMPLING), first_round()
    one, other = (plan(replace(requested, head_results=answers)) for _ in range(2))
    assert plan_to_json(one.plan) == plan_to_json(other.plan) and one.shards == other.shards


def test_point_without_a_duration_is_requested_once():
    requested, (first, answers) = request(*CURVE, more=SAMPLING), first_round()
    ids = planned_ids(first)
    answers = answers | {case: HeadResult(False, None) for case in ids[:5]}
    following = plan(replace(requested, head_results=answers))
    assert following.plan.forecast.learning == 50 and not set(planned_ids(following)) & set(ids)
    again = plan(replace(requested, head_results=answers, retry_failed=True))
    assert sorted(planned_ids(again)) == sorted([*ids[:5], *planned_ids(following)])


def test_again_repeats_the_measured_points_and_the_next_round():
    requested, (_, answers) = request(*CURVE, more=SAMPLING), first_round()
    assert len(planned_ids(plan(replace(requested, head_results=answers, again=True)))) == 160 + 50


def test_damaged_points_are_measured_independently_of_the_model():
    requested = request(*CURVE, more=SAMPLING)
    owed = dict.fromkeys((one.case_id for one in CURVE[:300]), "")
    made = plan(replace(requested, cases_to_repeat=owed)).plan
    assert set(planned_ids(plan(replace(requested, cases_to_repeat=owed)))) == owed.keys()
    assert made.forecast.learning == 160  # so that further rounds follow
    assert (made.forecast.cases, made.forecast.answered) == (300, 0)
    answers = measured([one.case_id for one in CURVE[300:350]], CURVE)
    assert (
        plan(replace(requested, cases_to_repeat=owed, head_results=answers)).plan.forecast.answered
        == 50
    )


def test_round_without_results_is_followed_by_one_more_and_no_other():
    requested, (first, _) = request(*CURVE, more=SAMPLING), first_round()
    in_vain = plan(replace(requested, before=first.plan.forecast))
    assert planned_ids(in_vain) == planned_ids(first) and in_vain.plan.forecast.learning == 0
    one = measured(planned_ids(first)[:1], CURVE)
    assert plan(
        replace(requested, before=first.plan.forecast, head_results=one)
    ).plan.forecast.learning
    # A campaign that is launched again starts over, and repairs of its last round do not.
    ended = replace(requested, before=in_vain.plan.forecast)
    assert plan(ended).plan.forecast.learning == 160
    assert plan(replace(ended, cases_to_repeat=dict.fromkeys(one, ""))).plan.forecast.learning == 0


def test_curves_too_small_to_learn_are_measured_completely():
    made = plan(request(*CURVE[:799], more=SAMPLING)).plan
    assert (made.forecast.left_out, made.forecast.learning, made.forecast.cases) == (0, 0, 799)
    assert plan(request(*CURVE[:800], more=SAMPLING)).plan.forecast.left_out == 650


def test_suspect_durations_are_used_for_training_and_measured_again():
    requested, (first, answers) = request(*CURVE, more=SAMPLING), first_round()
    ids = planned_ids(first)
    suspected = {case: replace(answers[case], is_suspect=True) for case in ids[:80]}
    following = plan(replace(requested, head_results=answers | suspected))
    assert following.plan.forecast.learning == 50
    assert set(ids[:80]) < set(planned_ids(following)) and following.plan.forecast.cases == 130


def test_other_outputs_are_another_curve():
    other = {"Output Data Types": "BOOL"}
    compared = [replace(one, cells={**one.cells, **other}) for one in CURVE[:100]]
    made = plan(request(*CURVE, *compared, more=SAMPLING))
    assert {one.case_id for one in compared} <= set(planned_ids(made))


def test_other_dtypes_are_another_curve():
    halves = [record("Add", f"{n + 1},8", dtype="FLOAT16") for n in range(100)]
    made = plan(request(*CURVE, *halves, more=SAMPLING))
    assert {one.case_id for one in halves} <= set(planned_ids(made))


def test_unsupported_cases_are_on_no_curve():
    no_owner = [record("Unknown", f"{n + 1},8") for n in range(900)]
    made = plan(request(*no_owner, more=SAMPLING))
    assert made.plan.forecast.left_out == 0 and made.plan.forecast.unsupported == len(no_owner)


def test_operator_without_known_work_excludes_no_points():
    broken = [record("Broken", f"{n + 1},8") for n in range(900)]
    assert plan(request(*broken, more=SAMPLING)).plan.forecast.left_out == 0


def test_operator_without_operations_has_a_surface():
    moved = operator("Move", flops=lambda case: 0)
    records = [record("Move", f"{n + 1},8") for n in range(900)]
    requested, find = request(*records, more=SAMPLING), {**OPERATORS, "Move": moved}.get
    made = make_plan(requested, find=find)
    following = make_plan(
        replace(requested, head_results=measured(planned_ids(made), records)), find=find
    )
    assert following.plan.forecast.learning and following.plan.forecast.left_out > 600


def test_equal_lengths_are_one_axis_and_output_axes_are_first():
    (surface,) = find_surfaces(
        ((one.case_id, one.case) for one in CURVE), OPERATORS.get, "cpu", least=1
    )
    first = next(one for one in CURVE if one.case_id == surface.case_ids[0])
    assert surface.points.sizes.shape == (1000, 2)
    assert tuple(surface.points.sizes[0]) == first.case.outputs[0].shape


def test_forecast_reports_the_excluded_points():
    found, _ = to_the_end()
    first, last = found[0].plan, found[-1].plan

    def sampling_line(made):
        (line,) = [one for one in describe_forecast(made) if one.startswith("sampling ")]
        return line

    assert numbers(sampling_line(first)) == ["840", "840"]
    assert numbers(sampling_line(last)) == ["750", str(last.forecast.unsure)]
    # The output announces another round where one follows.
    assert sampling_line(first) != sampling_line(
        replace(first, forecast=replace(first.forecast, learning=0))
    )


def test_plans_with_and_without_sampling_are_read_as_written():
    for made in (first_round()[0].plan, plan(request(*CURVE)).plan):
        assert plan_from_json(plan_to_json(made)) == made


def test_another_sampling_is_another_campaign():
    reported = {
        inputs_hash(campaign(more), STACK, (), None)
        for more in ("", "sampling: {tolerance: 5%}\n", "sampling: {tolerance: 5%, share: 0.5}\n")
    }
    assert len(reported) == 3
