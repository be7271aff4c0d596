"""Values exactly at the limit of a rule of quality."""

import numpy as np
import pytest

from collector.quality.canaries import (
    DeviceFactor,
    Factor,
    SessionFactor,
    SessionReadings,
    device_factors,
)
from collector.quality.evidence import SessionMeans, Trust, evidence_of, medians
from collector.quality.gates import LEAST_CASES, WorkCurve, find_hidden_work, larger_and_faster
from collector.quality.pooled import pooled_means
from collector.quality.profiler_limits import clock_step_us
from collector.quality.statistics import accept
from collector.quality.variance import fit
from collector.quality.variance_parts import variance_parts
from collector.quality.variance_prior import VariancePrior

pytestmark = pytest.mark.fast


def test_medians_are_computed_per_group():
    values = np.array([4.0, 1.0, 3.0, 10.0, 7.0, 5.0, 6.0])
    groups = np.array([0, 0, 0, 0, 1, 1, 1])
    assert medians(values, groups).tolist() == [3.5, 6.0]


def test_rounding_difference_is_not_a_clock_step():
    assert clock_step_us([[0.0, 0.0, 1e-6, 1e-6]]) == 0.0
    assert clock_step_us([[0.0, 0.0, 2e-6, 2e-6]]) == 2e-6


def test_case_of_twice_the_time_of_a_larger_one_is_not_above_the_envelope():
    sizes = np.array([[1.0], [2.0]])
    assert larger_and_faster(sizes, np.array([20.0, 10.0])).tolist() == [-1, -1]
    assert larger_and_faster(sizes, np.array([20.1, 10.0])).tolist() == [1, -1]
    # Both within a launch of 5 us of each other.
    assert larger_and_faster(sizes, np.array([7.0, 2.0])).tolist() == [-1, -1]
    assert larger_and_faster(sizes, np.array([7.1, 2.0])).tolist() == [1, -1]


def test_repeat_at_three_and_a_half_deviations_is_accepted():
    # The scale is 1 % of the median where all others agree: the limit is 3.5 of 100.
    repeats = [100.0] * 9
    assert accept([*repeats, 103.5]) == (*repeats, 103.5)
    assert accept([*repeats, 103.6]) == tuple(repeats)


def curve(base_work_us: float) -> WorkCurve:
    """Return the required number of cases with nearly no work and with 12 us of it, and one of
    1,000 us that sets the best rate; those of 12 us show none of their work."""
    few = np.full(LEAST_CASES, base_work_us)
    work = np.concatenate((few, np.full(LEAST_CASES, 12.0), np.full(400, 1000.0)))
    duration = np.concatenate((np.full(2 * LEAST_CASES, 20.0), np.full(400, 1000.0)))
    return WorkCurve(work, work, duration)


def test_work_visible_in_less_than_a_three_hundredth_counts_as_hidden():
    found = find_hidden_work(curve(10.0 / 301))
    assert found is not None and found.shown_share == 0.0
    assert find_hidden_work(curve(10.0 / 250)) is None


PRIOR = VariancePrior(
    ratio=1.0, tail_degrees=3.0, repeat_spread=0.01, device_spread=0.02, weight=10
)


def factors_of(*sessions_of_device: int) -> list[DeviceFactor]:
    """Return devices with large differences, each with sessions of small differences."""
    sessions = [
        SessionFactor(
            SessionReadings(f"{device}/{number}", f"d{device}", "warm", f"{number:02}", ()),
            Factor.of_log(0.5 * device + 0.002 * number, 0.01),
            "",
        )
        for device, count in enumerate(sessions_of_device)
        for number in range(count)
    ]
    return device_factors(sessions, PRIOR)


def test_ten_degrees_of_freedom_give_narrow_factors_of_devices():
    enough, too_few = factors_of(6, 6), factors_of(5, 6)
    assert all(one.factor.high / one.factor.low < 1.1 for one in enough)
    assert all(one.factor.high / one.factor.low > 1.5 for one in too_few)


def means_of(mean_us: list[float], devices: list[int]) -> SessionMeans:
    """Return measurements of one case, each in a separate session."""
    count = len(mean_us)
    return SessionMeans(
        cases=np.zeros(count, np.int64),
        families=["matmul"] * count,
        sessions=np.arange(count),
        devices=np.array(devices),
        mean_us=np.array(mean_us),
        spreads=np.full(count, 0.01),
        repeats=np.full(count, 25.0),
        trust=np.full(count, Trust.CLEAN),
    )


def test_variance_of_two_devices_is_half_of_that_of_one():
    evidence = evidence_of(means_of([7.0, 7.0], [0, 1]), repeat_spread=0.01)
    parts = variance_parts(evidence, fit(evidence, PRIOR))
    of_one = (parts.repeats + parts.session + parts.device)[0]
    assert parts.device[0] > 0
    assert pooled_means(evidence, parts).variance == pytest.approx([of_one / 2] * 2)


def test_degrees_of_freedom_are_rounded_to_a_tenth():
    draw = np.random.default_rng(3)
    for count in (2, 5, 11):
        means = means_of(draw.uniform(7.0, 7.2, count).tolist(), [0] * count)
        degrees = fit(evidence_of(means, repeat_spread=0.01), PRIOR).degrees
        assert (degrees == np.round(degrees, 1)).all() and (degrees > 0).all()
