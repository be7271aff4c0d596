"""Plans that measure the most uncertain cases again, weighed against the time that it takes."""

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.intervals import CaseInterval
from collector.model.plan import plan_from_json, plan_to_json
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import EP_SIZE
from collector.ops.registry import find_operator
from collector.ranks.experts import KERNEL, ExpertCall
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.candidates import HeadResult
from jobs.planning.gaps import describe_forecast
from jobs.planning.plan_making import make_plan
from tests.unit.jobs.planning.test_jobs_plan_making import (
    START_S,
    plan,
    planned_ids,
    record,
    request,
)
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast

RECORDS = [record("Add", f"{n + 1},2") for n in range(40)]
ONE, *_ = RECORDS
NPU = Stack("ATLAS_800_A3_752T_128G_DIE", "2.9.0", cann="8.5", torch_npu="2.9.0")


def interval(reach, sessions):
    return CaseInterval(50.0, sessions, 50 / exp(reach), 50 * exp(reach), 3.0, "prior")


def requested(known, hours=1.0, records=RECORDS, **more):
    """A plan of cases of which those in `known` are answered, with these intervals."""
    text = f"update: precision\nquality: {{repeat_share: 0, budget_device_h: {hours}}}\n"
    answers = {
        case: HeadResult(True, 50.0, interval(*reported) if reported else None)
        for case, reported in known.items()
    }
    return plan(replace(request(*records, more=text), head_results=answers, **more))


def alike(reach=0.1, sessions=1):
    return dict.fromkeys((record.case_id for record in RECORDS), (reach, sessions))


def hours_for(cases, known):
    """A budget that pays for this many of the cases, which all cost the same, and a start."""
    whole = requested(known).plan.forecast
    each_s = whole.floor_s / whole.cases
    return (START_S + (cases + 0.5) * each_s) / 3600


def test_missing_cases_are_measured_with_any_budget():
    known = alike()
    missing = [case for case in known if case != ONE.case_id]
    made = requested({ONE.case_id: known[ONE.case_id]}, hours=hours_for(0, known))
    assert planned_ids(made) == sorted(missing)
    assert (made.plan.forecast.narrowed, made.plan.forecast.answered) == (0, 1)


def test_widest_intervals_are_measured_again_within_the_budget():
    known = alike()
    wide = [record.case_id for record in RECORDS[5:9]]
    known |= dict.fromkeys(wide, (0.5, 1))
    made = requested(known, hours=hours_for(4, known))
    assert planned_ids(made) == sorted(wide)
    assert made.plan.forecast.narrowed == 4 and made.plan.forecast.answered == 36
    assert numbers(describe_forecast(made.plan)[0]) == ["4", "1", "0", "36", "4"]


def test_case_with_one_session_gains_most_from_another():
    known = alike(sessions=4)
    known[ONE.case_id] = (0.1, 1)
    assert planned_ids(requested(known, hours=hours_for(1, known))) == [ONE.case_id]


def test_slow_case_follows_the_fast_ones():
    known = alike(reach=0.2)
    slow = ONE.case_id
    known[slow] = (0.3, 1)
    answers = {
        case: HeadResult(True, 50.0, interval(*reported)) for case, reported in known.items()
    }
    answers[slow] = HeadResult(True, 100_000.0, interval(*known[slow]))
    text = "update: precision\nquality: {repeat_share: 0, budget_device_h: %f}\n"
    text %= hours_for(10, known)
    made = plan(replace(request(*RECORDS, more=text), head_results=answers))
    assert made.plan.forecast.narrowed >= 10 and slow not in planned_ids(made)


def test_case_without_an_interval_is_not_repeated():
    assert planned_ids(requested(dict.fromkeys(alike()))) == []


def test_failures_and_damage_are_measured_only_on_request():
    known = alike()
    assert planned_ids(requested(known, retry_failed=True)) == []
    assert planned_ids(requested(known, cases_to_repeat={ONE.case_id: ""})) == [ONE.case_id]
    again = requested(known, again=True, hours=hours_for(3, known))
    assert again.plan.forecast.narrowed == 3  # another round of the same, not all of it


def test_budget_that_pays_for_no_case_is_refused():
    with pytest.raises(BadInput, match=r"^quality\.budget_device_h: .*\b1 s\b"):
        requested(alike(), hours=1 / 3600)


@pytest.mark.parametrize("devices", [1, 8, 32])
@pytest.mark.parametrize("hours", [0.02, 0.1])
def test_starts_of_devices_sessions_and_canaries_are_in_the_budget(devices, hours):
    records = [record("Add", f"{n + 1},2") for n in range(800)]
    known = {r.case_id: HeadResult(True, 5000.0, interval(0.1, 1)) for r in records}
    text = f"update: precision\nquality: {{repeat_share: 0, budget_device_h: {hours}}}\n"
    requested_of = request(*records, more=f"{text}devices: {devices}\n")
    forecast = plan(replace(requested_of, head_results=known)).plan.forecast
    # The rest is less than what one more device takes to start.
    assert hours * 3600 - 6 <= forecast.device_s <= hours * 3600 * 1.001


@pytest.mark.parametrize(("hours", "is_enough"), [(0.2, False), (0.5, True)])
def test_starts_of_all_gang_ranks_are_in_the_budget(hours, is_enough):
    records = []
    for tokens in range(1, 200):
        cells = dict(ExpertCall(tokens, 128, 64, 32, 4, ep_size=16).cells)
        records.append(CaseRecord(KERNEL, cells, {EP_SIZE: cells.pop(EP_SIZE)}))
    known = {r.case_id: HeadResult(True, 5000.0, interval(0.1, 1)) for r in records}
    text = "campaign: c\nsources: [{bundled: quickstart}]\nbackend: npu\ndevices: 16\n"
    text += f"update: precision\nquality: {{repeat_share: 0, budget_device_h: {hours}}}\n"
    of = campaign_from_text(text, path="c.yaml", base=Path())
    requested_of = replace(request(*records), campaign=of, stack=NPU, head_results=known)
    forecast = make_plan(requested_of, find=find_operator).plan.forecast
    assert (forecast.narrowed > 0) == is_enough and forecast.device_s <= hours * 3600


def test_plan_of_a_precision_round_is_read_as_written():
    made = requested(alike(), hours=hours_for(2, alike())).plan
    assert plan_from_json(plan_to_json(made)) == made
