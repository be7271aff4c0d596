"""The speed of sessions and devices, compared with the history of their stack."""

import re
from dataclasses import replace

import numpy as np
import pytest

from collector.model.measurement import CanaryReading
from collector.model.plan import CANARY_PLACES
from collector.quality.canaries import (
    LEAST_FOR_BAND,
    LEAST_SESSIONS,
    SessionReadings,
    device_factors,
    session_factors,
)
from collector.quality.variance_prior import prior_of
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

NPU = prior_of("ATLAS_800_A3")
USUAL_US = {"Add": 90.0, "MatMulV2": 450.0}


def session(number, *, device="node-1 device 0", factor=1.0, deviation=0.01, only=None, **more):
    draw = np.random.default_rng(number)
    own = factor * np.exp(draw.normal(0, 0.005))
    readings = tuple(
        CanaryReading(case, place, 1.0, us * own * np.exp(draw.normal(0, 0.003)), deviation, 8)
        for case, us in USUAL_US.items()
        for place in CANARY_PLACES
        if only in (None, case)
    )
    reported = {"cache": "warm", "began": f"{number:04}", "readings": readings} | more
    return SessionReadings(f"session {number}", device, **reported)


def faults(*sessions):
    return {one.of.session: one.fault for one in session_factors(sessions, NPU) if one.fault}


USUAL = [session(number) for number in range(8)]


def test_sessions_within_the_usual_spread_have_no_fault():
    assert faults(*USUAL) == {}
    for one in session_factors(USUAL, NPU):
        assert 0.98 < one.factor.low < one.factor.factor < one.factor.high < 1.02


def test_session_that_is_6_percent_slower_is_reported_with_its_factor():
    found = faults(*USUAL, session(8, factor=1.06))
    assert list(found) == ["session 8"]
    assert re.search(r"\b1\.0[2-8]", found["session 8"])
    reported = session_factors([*USUAL, session(8, factor=1.06)], NPU)[-1].factor
    assert 1.02 < reported.low < reported.factor < reported.high < 1.08


def test_faster_session_is_reported_like_a_slower_one():
    assert re.search(r"\b0\.9", faults(*USUAL, session(8, factor=0.93))["session 8"])


def test_single_deviating_canary_is_reported():
    """Like a device of which only the memory is slower."""
    odd = session(8, factor=1.08, only="Add").readings + session(9, only="MatMulV2").readings
    (reported,) = faults(*USUAL, session(8, readings=odd)).values()
    assert names(reported, "Add") and re.search(r"\b1\.0", reported)


def test_unusual_spread_of_repeats_is_reported():
    (reported,) = faults(*USUAL, session(8, deviation=0.2)).values()
    assert names(reported, "20.0", "1.0")


def test_few_sessions_have_no_history():
    few = [*USUAL[: LEAST_SESSIONS - 2], session(8, factor=1.2)]
    assert faults(*few) == {} and faults(session(0)) == faults() == {}


def beyond_band(*sessions, prior=NPU):
    return [one.of.session for one in session_factors(sessions, prior) if one.is_beyond_band]


@pytest.mark.parametrize(
    ("factor", "found"), [(1.2, []), (1.35, ["session 8"]), (0.7, ["session 8"])]
)
def test_band_excludes_factors_that_no_intact_device_shows(factor, found):
    odd = session(8, factor=factor)
    assert beyond_band(*USUAL, odd) == found
    assert list(faults(*USUAL, odd)) == ["session 8"]  # it is flagged either way


def test_two_agreeing_sessions_outvote_one_and_two_sessions_decide_nothing():
    odd = session(8, factor=2)
    assert beyond_band(*USUAL[: LEAST_FOR_BAND - 1], odd) == ["session 8"]
    assert beyond_band(USUAL[0], odd) == []


def test_band_of_a_cpu_is_wider():
    cpu = prior_of("CPU_test_2t")
    assert beyond_band(*USUAL, session(8, factor=2), prior=cpu) == []
    assert beyond_band(*USUAL, session(8, factor=4), prior=cpu) == ["session 8"]


@pytest.mark.parametrize(("slower", "found"), [(1.1, []), (1.4, ["session 0"])])
def test_drift_beyond_the_band_needs_no_other_sessions(slower, found):
    readings = tuple(
        replace(one, mean_us=one.mean_us * (slower if one.place == CANARY_PLACES[-1] else 1))
        for one in session(0).readings
    )
    tired = session(0, readings=readings)
    assert beyond_band(tired) == found
    assert [*faults(tired)] == found  # below that its measurements already have a warning


def test_cold_and_warm_sessions_have_separate_histories():
    cold = [session(number, factor=1.5, cache="cold") for number in range(10, 18)]
    assert faults(*USUAL, *cold) == {}


def test_session_without_readings_is_ignored():
    found = session_factors([session(99, readings=()), *USUAL], NPU)
    assert [one.of for one in found] == USUAL


def test_order_of_sessions_changes_nothing():
    sessions = [*USUAL, session(8, factor=1.06)]
    assert faults(*reversed(sessions)) == faults(*sessions)


def test_devices_are_sorted_by_slowness_with_their_flagged_sessions():
    slow = [session(n, device="node-2 device 3", factor=1.06) for n in range(20, 23)]
    found = device_factors(session_factors([*USUAL, *slow], NPU), NPU)
    assert [(one.device, one.sessions, one.flagged) for one in found] == [
        ("node-2 device 3", 3, 3),
        ("node-1 device 0", 8, 0),
    ]
    assert found[0].factor.low < 1.06 < found[0].factor.high
    assert [one.drift for one in found] == [None, None]


def alike(sessions, *, simulation=0):
    """Return devices with this many sessions each, which differ by 1 % and in nothing else."""
    factors = np.exp(np.random.default_rng(simulation).normal(0, 0.01, sum(sessions)))
    devices = [f"device {n:02}" for n, count in enumerate(sessions) for _ in range(count)]
    reported = [
        session(1000 * simulation + n, device=device, factor=factor)
        for n, (device, factor) in enumerate(zip(devices, factors, strict=True))
    ]
    return device_factors(session_factors(reported, NPU), NPU)


@pytest.mark.thorough
@pytest.mark.parametrize("sessions", [[1] * 64, [1] * 60 + [4], [2] * 48, [4] * 32])
def test_intervals_of_equal_devices_cover_one(sessions):
    found = [one for simulation in range(6) for one in alike(sessions, simulation=simulation)]
    missed = [one for one in found if not one.factor.low <= 1 <= one.factor.high]
    assert len(missed) <= 0.08 * len(found)  # 5 % is stated


def test_few_sessions_of_one_device_rarely_report_a_drift():
    found = [one for simulation in range(40) for one in alike([1] * 8 + [4], simulation=simulation)]
    assert sum(one.drift is not None for one in found) <= 1  # of 40; 0.2 % is stated


def test_device_that_slows_over_its_sessions_is_reported():
    tired = [
        session(n, device="node-2 device 3", factor=1 + 0.01 * (n - 20)) for n in range(20, 28)
    ]
    found = device_factors(session_factors([*USUAL, *tired], NPU), NPU)
    earlier, later = next(one.drift for one in found if one.drift)
    assert later - earlier == pytest.approx(0.04, abs=0.015)
