"""Plans that measure again what is known least, for the time that it takes."""

from dataclasses import replace

import pytest

from collector.database.published_intervals import KnownInterval
from collector.errors import BadInput
from collector.plan import plan_from_json, plan_to_json
from jobs.planning.candidates import HeadAnswer
from jobs.planning.plan_making import describe_forecast
from tests.unit.jobs.planning.test_jobs_plan_making import (
    plan,
    planned_ids,
    record,
    request,
)

pytestmark = pytest.mark.fast

RECORDS = [record("Add", f"{n + 1},2") for n in range(40)]
ONE, *_ = RECORDS


def asked(known, hours=1.0, records=RECORDS, **more):
    """A plan of cases of which those in `known` are answered, with such intervals."""
    text = f"update: precision\nquality: {{repeat_share: 0, budget_device_h: {hours}}}\n"
    answers = {
        case: HeadAnswer(True, 50.0, KnownInterval(*told) if told else None)
        for case, told in known.items()
    }
    return plan(replace(request(*records, more=text), answered=answers, **more))


def alike(reach=0.1, sessions=1):
    return dict.fromkeys((record.case_id for record in RECORDS), (reach, sessions))


def hours_for(cases, known):
    """A budget that pays for so many of the cases, which all cost the same, and a start."""
    whole = asked(known).plan.forecast
    each_s = whole.floor_s / whole.cases
    return (5.0 + (cases + 0.5) * each_s) / 3600


def test_what_is_missing_is_measured_whatever_the_budget():
    known = alike()
    missing = [case for case in known if case != ONE.case_id]
    made = asked({ONE.case_id: known[ONE.case_id]}, hours=hours_for(0, known))
    assert planned_ids(made) == sorted(missing)
    assert (made.plan.forecast.narrowed, made.plan.forecast.answered) == (0, 1)


def test_the_widest_are_measured_again_as_far_as_the_budget_goes():
    known = alike()
    wide = [record.case_id for record in RECORDS[5:9]]
    known |= dict.fromkeys(wide, (0.5, 1))
    made = asked(known, hours=hours_for(4, known))
    assert planned_ids(made) == sorted(wide)
    assert made.plan.forecast.narrowed == 4 and made.plan.forecast.answered == 36
    assert "4 of them are measured again" in describe_forecast(made.plan)[0]


def test_a_session_more_tells_most_where_there_was_one():
    known = alike(sessions=4)
    known[ONE.case_id] = (0.1, 1)
    assert planned_ids(asked(known, hours=hours_for(1, known))) == [ONE.case_id]


def test_a_case_that_takes_long_waits_for_those_that_do_not():
    known = alike(reach=0.2)
    slow = ONE.case_id
    known[slow] = (0.3, 1)
    answers = {case: HeadAnswer(True, 50.0, KnownInterval(*told)) for case, told in known.items()}
    answers[slow] = HeadAnswer(True, 100_000.0, KnownInterval(*known[slow]))
    text = "update: precision\nquality: {repeat_share: 0, budget_device_h: %f}\n"
    text %= hours_for(10, known)
    made = plan(replace(request(*RECORDS, more=text), answered=answers))
    assert made.plan.forecast.narrowed >= 10 and slow not in planned_ids(made)


def test_what_has_no_interval_is_left():
    assert planned_ids(asked(dict.fromkeys(alike()))) == []


def test_failures_and_damage_alone_are_measured_where_that_is_asked():
    known = alike()
    assert planned_ids(asked(known, retry_failed=True)) == []
    assert planned_ids(asked(known, owed=frozenset([ONE.case_id]))) == [ONE.case_id]
    again = asked(known, again=True, hours=hours_for(3, known))
    assert again.plan.forecast.narrowed == 3  # another round of the same, not all of it


def test_a_budget_that_pays_for_no_case_is_refused():
    with pytest.raises(BadInput, match="budget_device_h: 1 s pay for no case: a session"):
        asked(alike(), hours=1 / 3600)


def test_the_plan_of_such_a_round_reads_back():
    made = asked(alike(), hours=hours_for(2, alike())).plan
    assert plan_from_json(plan_to_json(made)) == made
    assert b"narrowed" not in plan_to_json(plan(request(*RECORDS)).plan)
