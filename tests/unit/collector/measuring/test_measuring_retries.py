"""Which outcomes are final at once."""

from dataclasses import replace

import pytest

from collector.measuring.batches import cases_to_repeat, is_final
from collector.model.measurement import (
    Condition,
    ConditionReading,
    Disturbance,
    Measurement,
    Outcome,
    Timing,
)
from collector.model.plan import ShardCase
from collector.quality.canaries import DRIFTED
from collector.quality.device_disturbances import disturbance_of_readings
from tests.unit.collector.measuring.pretending import record

pytestmark = pytest.mark.fast


def test_case_is_final_after_the_outcome_or_its_repetition():
    lost = Outcome.PROFILER_LOST
    assert not is_final([]) and not is_final([lost])
    assert is_final([lost, lost]) and is_final([lost, Outcome.HUNG])
    assert not is_final([Outcome.OOM]) and is_final([Outcome.OOM, Outcome.OOM])


QUIET, HELD = Disturbance(30, 30), Disturbance(30, 0, waited_share=0.5)
CASES = [ShardCase(record(f"{i + 1},2"), float(i + 1)) for i in range(4)]  # 10 s in all
REST = ShardCase(record("9,9"), 90.0)


def tries(case, *disturbances):
    timing = Timing(*[1.0] * 8)
    name, kernel = case.record.case_id, case.record.kernel_type
    return {
        name: [
            Measurement(name, kernel, Outcome.OK, "", None, timing=timing, disturbance=reported)
            for reported in disturbances
        ]
    }


def test_undisturbed_measurement_is_not_repeated():
    tried = {}
    for case, disturbance in zip(CASES, (QUIET, None, Disturbance(30, 3), QUIET), strict=True):
        tried |= tries(case, disturbance)
    assert cases_to_repeat(CASES, tried) == []


def test_disturbed_cases_are_repeated_shortest_first_within_a_budget():
    tried = tries(CASES[0], HELD) | tries(CASES[1], HELD)
    assert cases_to_repeat(CASES, tried) == CASES[:1]  # 1 + 2 s are more than a quarter of 10
    assert cases_to_repeat([*CASES, REST], tried) == CASES[:2]


def test_throttled_or_shared_device_causes_a_repetition_and_waiting_does_not():
    readings = [
        ConditionReading(0.0, Condition(held=("heat",))),
        ConditionReading(0.0, Condition(others=1)),
    ]
    for reading in readings:
        assert (
            cases_to_repeat(CASES, tries(CASES[0], disturbance_of_readings([reading], 30)))
            == CASES[:1]
        )
    assert (
        cases_to_repeat(CASES, tries(CASES[0], disturbance_of_readings([], 30, gap_share=0.9)))
        == []
    )


def test_repetitions_count_against_the_budget():
    first, second, *_ = CASES
    tried = tries(first, HELD, QUIET) | tries(second, HELD)
    assert cases_to_repeat(CASES, tried) == []  # 2 s more, and 1.5 are left
    assert cases_to_repeat([*CASES, REST], tried) == [second]
    tried = tries(first, HELD, QUIET) | tries(second, HELD, HELD, HELD)
    assert cases_to_repeat([*CASES, REST], tried) == []  # a few times


def test_repetition_ends_if_it_has_helped_no_case():
    first, second, *_ = CASES
    tried = tries(first, HELD, HELD) | tries(second, HELD)
    assert cases_to_repeat([*CASES, REST], tried) == []


def test_repetition_is_skipped_if_most_cases_are_disturbed():
    tried = tries(CASES[0], HELD) | tries(CASES[1], HELD)
    assert cases_to_repeat([*CASES[:3], REST], tried) == CASES[:2]
    assert cases_to_repeat([*CASES[:2], REST], tried) == []


def test_case_of_a_drifting_session_is_measured_again():
    (first,) = tries(CASES[0], QUIET).values()
    drifted = [replace(first[0], warnings=(f"{DRIFTED}: by 6 %",))]
    name = CASES[0].record.case_id
    assert cases_to_repeat(CASES, {name: drifted}) == CASES[:1]
    assert cases_to_repeat(CASES, {name: [*drifted, *first]}) == []


def test_one_undisturbed_try_is_enough():
    assert cases_to_repeat(CASES, tries(CASES[0], HELD, QUIET)) == []


def test_case_without_a_duration_is_not_disturbed():
    name = CASES[0].record.case_id
    failed = Measurement(name, "Add", Outcome.FAILED, "it raised", None, disturbance=None)
    assert cases_to_repeat(CASES, {name: [failed]}) == []
