"""Each verdict is counted under its own gate, with the messages of the gate."""

import numpy as np
import pytest

from collector.codec.canonical import canonical_json
from collector.model.measurement import Disturbance, Outcome, Timing
from collector.quality.canaries import DRIFTED, WITHHELD
from collector.quality.disturbances import disturbance_warnings
from collector.quality.evidence import Trust
from collector.quality.gates import (
    OTHER,
    HiddenWork,
    cores_worked_longer,
    find_unit_mistake,
    gate_of_outcome,
    gate_of_warning,
    implausible,
    timing_warnings,
    trust_of,
)
from collector.quality.statistics import find_trend, two_modes

pytestmark = pytest.mark.fast


def _ok(mean_us: float) -> str:
    return implausible(mean_us, lowest_us=1, limit_us=1e6)


@pytest.mark.parametrize(
    ("reason", "gate"),
    [
        (_ok(0.5), "floor"),
        (_ok(2e6), "limit"),
        (_ok(float("nan")), "no duration"),
        (cores_worked_longer(5, {"aiv_time(us)": 50}), "cores at work"),
        (HiddenWork(40, 60, 60, 0.0, 1.0).fault, "host time"),
        (find_unit_mistake(np.full(30, 5e3), np.full(30, 0.1)), "unit"),
        (f"{WITHHELD}Add took 2.000 times as long", "canary band"),
        ("a release to come says so", OTHER),
    ],
)
def test_implausible_outcome_is_counted_under_its_gate(reason, gate):
    assert reason
    assert gate_of_outcome(Outcome.IMPLAUSIBLE, reason) == gate


def test_other_gated_outcomes_are_counted_and_failures_are_not():
    reported = {outcome: gate_of_outcome(outcome, "why") for outcome in Outcome}
    assert reported[Outcome.GATED] == "outputs"
    assert reported[Outcome.SUBSTITUTED] == "identity"
    assert reported[Outcome.PROFILER_LOST] == "reconciliation"
    assert {reported[outcome] for outcome in (Outcome.OK, Outcome.OOM, Outcome.CRASHED)} == {""}


@pytest.mark.parametrize(
    ("warnings", "gates"),
    [
        (timing_warnings(Timing(10, 9, 11, 10, 8, 9, 12, 0.2), 2), ["spread", "few repeats"]),
        (disturbance_warnings(Disturbance(9, 0, 0.3, 0.1, 4)), ["disturbed"]),
        (disturbance_warnings(Disturbance(9, 1, 0.3, 0, 4)), ["disturbed"]),
        ([str(two_modes([10.0, 10.1, 10.2, 15.0, 15.1, 15.3] * 8))], ["two modes"]),
        ([find_trend([10.0] * 20 + [20.0] * 20)], ["trend"]),
        ([f"{DRIFTED}: its canaries took"], ["drift"]),
        (["canaries: Add took 1.06 times as long"], ["canaries"]),
        (["output 0 is up to 0.5 away from the reference"], ["reference"]),
        (["no counters of Memory: gated, spread 30 % is above 10 %"], ["counters"]),
        (["3 of 5 rounds", "set where it ran: HCCL_ALGO=ring"], ["rounds", "settings"]),
    ],
)
def test_warning_is_counted_under_its_gate(warnings, gates):
    assert [gate_of_warning(warning) for warning in warnings] == gates


def test_trust_depends_on_what_the_warnings_are_of():
    of_repeats = timing_warnings(Timing(10, 9, 11, 10, 8, 9, 12, 0.2), 2)
    busy = disturbance_warnings(Disturbance(9, 0, 0.3, 0.1, 4))
    found = [
        trust_of(canonical_json(list(one)).decode() if one else "")
        for one in ((), of_repeats, (*of_repeats, DRIFTED), (*of_repeats, *busy))
    ]
    assert found == [Trust.CLEAN, Trust.SCATTERED, Trust.WARNED, Trust.DISTURBED]
