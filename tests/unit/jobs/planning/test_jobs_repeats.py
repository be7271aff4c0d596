"""Cases that a plan measures a second time: which, how many, and that nothing else changes."""

from collections import Counter
from dataclasses import replace
from math import floor, fsum, log10

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.plan import plan_from_json, plan_to_json, read_shard
from collector.model.record import CaseRecord
from jobs.planning.candidates import Candidate, PricedCase, Weight
from jobs.planning.gaps import describe_forecast
from jobs.planning.plan_making import inputs_hash
from jobs.planning.second_sessions import repeated_cases, repeated_shards
from tests.unit.jobs.planning.test_jobs_plan_making import (
    OWN,
    STACK,
    campaign,
    plan,
    record,
    request,
)
from tests.unit.jobs.printed import numbers

pytestmark = pytest.mark.fast


def priced(*launches_s: float, cost_s: float = 1.0, ranks: int = 1) -> list[PricedCase]:
    return [
        PricedCase(
            Candidate(record(shape=f"{n + 1}"), None, Weight(1, 0.0, False)),
            cost_s,
            "group",
            None,
            ranks,
            launch_s=launch_s,
        )
        for n, launch_s in enumerate(launches_s)
    ]


def ids(cases: list[PricedCase]) -> list[str]:
    return [case.candidate.record.case_id for case in cases]


def decades(cases: list[PricedCase]) -> Counter[int]:
    return Counter(floor(log10(case.launch_s)) for case in cases)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([3e-6, 3e-5, 3e-4, 3e-3]), max_size=900),
    st.floats(0.0, 1.0),
    st.integers(1, 3),
)
def test_repeats_are_within_their_bounds(launches_s: list[float], share: float, token: int) -> None:
    cases = priced(*launches_s)
    again = repeated_cases(cases, share, token)
    more = max(1.0, share / 0.02)
    assert len(set(ids(again))) == len(again)
    assert set(ids(again)) <= set(ids(cases))
    assert len(again) <= max(share * len(cases) + 1, 12)
    assert max(decades(again).values(), default=0) <= 12 * more + 1
    assert fsum(c.cost_s for c in again) <= 0.03 * more * fsum(c.cost_s for c in cases) + 1e-9
    assert again == repeated_cases(cases, share, token)


def test_decades_have_equally_many_repeats_if_they_have_enough_cases() -> None:
    cases = priced(*[3e-6] * 5, *[3e-5] * 2000, *[3e-3] * 995)
    again = repeated_cases(cases, 0.02, 1)
    assert decades(again) == {-6: 5, -5: 12, -3: 12}


def test_small_plan_repeats_a_dozen_cheap_cases() -> None:
    cheap, dear = priced(*[3e-6] * 60, cost_s=0.01), priced(*[1.0] * 3, cost_s=50.0)
    again = repeated_cases(cheap + dear, 0.02, 1)
    assert decades(again) == {-6: 12}
    assert repeated_cases(dear, 0.02, 1) == []


def test_another_plan_repeats_other_cases() -> None:
    cases = priced(*[3e-5] * 2000)
    assert ids(repeated_cases(cases, 0.02, 1)) != ids(repeated_cases(cases, 0.02, 2))


def test_number_of_repeat_sessions_follows_from_their_start_costs() -> None:
    cases = priced(*[3e-6, 3e-5, 3e-4, 3e-3] * 400)

    def shards(total_s: float, start_s: float = 30.0) -> list[int]:
        found = repeated_shards(cases, 0.02, total_s=total_s, start_s=start_s, token=1)
        return [len(shard) for shard in found]

    assert shards(624.0) == []
    assert shards(626.0 + 32 / 0.048) == [32]
    assert shards(1252.0 + 32 / 0.048) == [16, 16]
    assert shards(1e6) == [4] * 8


@given(
    st.lists(st.floats(0.001, 20.0), min_size=4, max_size=400),
    st.floats(0.0, 0.02),
    st.floats(1.0, 60.0),
)
@settings(max_examples=60, deadline=None)
def test_repeats_cost_less_than_a_twentieth_of_a_plan(
    costs_s: list[float], share: float, start_s: float
) -> None:
    cases = [
        replace(c, cost_s=s) for c, s in zip(priced(*[3e-5] * len(costs_s)), costs_s, strict=True)
    ]
    total_s = fsum(costs_s) + 8 * start_s
    found = repeated_shards(cases, share, total_s=total_s, start_s=start_s, token=1)
    cost_s = start_s * len(found) + fsum(c.cost_s for shard in found for c in shard)
    assert cost_s <= 0.048 * total_s + 1e-9


def test_unsupported_cases_are_not_repeated() -> None:
    refused = [replace(c, refusal="no", launch_s=0.0) for c in priced(*[3e-5] * 500)]
    assert repeated_cases(refused, 0.5, 1) == []


MANY = [record(shape=f"1024,{n + 1}", mean_us=3000.0) for n in range(1500)]


@pytest.mark.thorough
def test_repeats_do_not_change_the_other_shards() -> None:
    once = plan(request(*MANY, source=OWN, more="quality: {repeat_share: 0}\n"))
    twice = plan(request(*MANY, source=OWN))
    repeats = twice.plan.shards[len(once.plan.shards) :]
    assert twice.plan.shards[: len(once.plan.shards)] == once.plan.shards
    assert repeats and twice.plan.repeats == repeats
    assert twice.plan.forecast.repeats == sum(shard.cases for shard in repeats) == 12
    assert (once.plan.repeats, once.plan.forecast.repeats) == ((), 0)
    assert twice.plan.forecast.cases == once.plan.forecast.cases == len(MANY)
    assert twice.plan.forecast.device_s > once.plan.forecast.device_s


@pytest.mark.thorough
def test_repeated_case_is_indistinguishable_from_its_first_measurement() -> None:
    made = plan(request(*MANY, source=OWN))
    first: dict[str, CaseRecord] = {}
    again = {}
    for shard in made.plan.shards:
        for case in read_shard(made.shards[shard.shard_id]):
            known = again if case.record.case_id in first else first
            known[case.record.case_id] = case.record
    assert len(first) == len(MANY)
    assert len(again) == 12
    assert all(first[case] == once_more for case, once_more in again.items())


@pytest.mark.thorough
def test_shard_of_repeats_names_the_shards_of_its_first_measurements() -> None:
    made = plan(request(*MANY, source=OWN, more="devices: 4\n"))
    cases = {
        shard.shard_id: {case.record.case_id for case in read_shard(made.shards[shard.shard_id])}
        for shard in made.plan.shards
    }
    once = [shard for shard in made.plan.shards if shard not in made.plan.repeats]
    assert made.plan.repeats and not any(shard.again_of for shard in once)
    for shard in made.plan.repeats:
        first = [one.shard_id for one in once if cases[one.shard_id] & cases[shard.shard_id]]
        assert list(shard.again_of) == first
    assert plan_from_json(plan_to_json(made.plan)) == made.plan


def test_cases_first_measured_by_one_device_are_repeated_together() -> None:
    cases = priced(*[3e-6, 3e-5, 3e-4, 3e-3] * 400)
    lanes = {case: at % 2 for at, case in enumerate(ids(cases))}
    found = repeated_shards(cases, 0.02, total_s=1e6, start_s=30.0, token=1, lanes=lanes)
    assert [len(shard) for shard in found] == [4] * 8
    assert sum(len({lanes[case] for case in ids(shard)}) > 1 for shard in found) <= 1


@pytest.mark.thorough
def test_failures_and_damage_are_measured_once() -> None:
    requested = request(*MANY, source=OWN)
    every = dict.fromkeys((r.case_id for r in MANY), "")
    assert plan(replace(requested, retry_failed=True)).plan.forecast.repeats == 0
    assert plan(replace(requested, cases_to_repeat=every)).plan.forecast.repeats == 0


@pytest.mark.thorough
def test_plans_with_and_without_repeats_are_read_as_written() -> None:
    made = plan(request(*MANY, source=OWN, more="quality: {repeat_share: 0}\n")).plan
    assert plan_from_json(plan_to_json(made)) == made
    reported = plan(request(*MANY, source=OWN)).plan
    assert plan_from_json(plan_to_json(reported)) == reported
    assert numbers(describe_forecast(reported)[0])[-1] == "12"


def test_default_quality_settings_do_not_change_the_inputs_hash() -> None:
    def expected(more: str) -> str:
        return inputs_hash(campaign(more), STACK, [OWN], None)

    assert expected("quality: {repeat_share: 0.02}\n") == expected("")
    assert expected("quality: {repeat_share: 0}\n") != expected("")
