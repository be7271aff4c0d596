"""How a surface is measured, round by round."""

from dataclasses import replace
from functools import cache

import numpy as np

from collector.surfaces.base import Monomial, work_on
from collector.surfaces.rounds import LEAST_BUDGET, Known, PointBudget, Points, next_round

N = 1000
BUDGET = PointBudget(250)


def surface(noise=0.02):
    """Return shapes of a matrix product, and their durations: work after a launch, edges of tiles,
    and noise."""
    chance = np.random.default_rng(3)
    m, n, k = 2.0 ** chance.integers(4, 13, (3, N)) + chance.integers(0, 16, (3, N))
    work = work_on(np.stack([m, n, k], 1), [[m, k], [k, n]], [[m, n]], Monomial(0.0, (1, 1, 1)))
    points = Points(np.stack([m, n, k], 1), work)
    tiles = np.ceil(m / 128) * np.ceil(n / 128) * k
    return points, (5 + tiles / 500) * np.exp(noise * chance.standard_normal(N))


def unknown(checks=BUDGET.checks):
    is_check = np.arange(N) < checks
    return Known(np.zeros(N, bool), np.full(N, np.nan), is_check)


def measure(known, request, duration_us):
    known.requested[request] = True
    known.duration_us[request] = duration_us[request]


@cache
def to_the_end():
    return rounds(*surface(), 0.01)


def rounds(points, duration_us, tolerance, known=None):
    """Run all rounds to the end, and return the final state."""
    known, found = known or unknown(), []
    while not found or len(found[-1].points_to_measure):
        found.append(next_round(points, known, BUDGET, tolerance))
        assert not known.requested[found[-1].points_to_measure].any()
        measure(known, found[-1].points_to_measure, duration_us)
    return found, known


def test_a_budget_is_split_into_a_start_steps_and_checks():
    assert (BUDGET.coarse, BUDGET.step, BUDGET.checks) == (110, 50, 50)
    large = PointBudget(9000)
    assert (large.coarse, large.step, large.checks) == (3600, 900, 1800)
    assert large.coarse + 4 * large.step == large.teaching
    least = PointBudget(LEAST_BUDGET)
    assert least.coarse < least.teaching and least.checks >= 19  # fewer points: no 95 % interval


def test_surface_is_learnt_within_its_budget_with_calibrated_intervals():
    _, duration_us = surface()
    found, known = to_the_end()
    assert [len(one.points_to_measure) for one in found] == [160, 50, 40, 0]
    assert known.requested.sum() == BUDGET.requested
    rest = ~known.requested
    last = found[-1]
    error = np.abs(last.estimate.log_us - np.log(duration_us))[rest]
    assert 0.9 <= np.mean(error <= last.half_widths[rest]) <= 0.99
    assert np.median(error) < 0.1


def test_check_points_are_not_used_for_training():
    points, duration_us = surface()
    known = unknown()
    (first, before, *_), _ = to_the_end()
    assert known.checks[first.points_to_measure].sum() == BUDGET.checks
    measure(known, first.points_to_measure, duration_us)
    known.duration_us[known.checks] *= 1000
    after = next_round(points, known, BUDGET, 0.01)
    assert np.array_equal(after.estimate.log_us, before.estimate.log_us)


def test_distant_check_points_widen_every_interval():
    points, _ = surface()
    found, known = to_the_end()
    outlier = known.duration_us * np.where(known.checks, 3.0, 1.0)
    worse = next_round(points, replace(known, duration_us=outlier), BUDGET, 0.01)
    rest = ~known.requested
    assert (worse.half_widths[rest] > 3 * found[-1].half_widths[rest]).all()


def test_known_surface_is_checked_immediately():
    points, duration_us = surface()
    found, known = rounds(points, duration_us, 0.99)
    assert [len(one.points_to_measure) for one in found] == [160, 0]


def test_all_points_are_measured_if_hardly_any_gives_a_duration():
    points, duration_us = surface()
    known = unknown()
    request = next_round(points, known, BUDGET, 0.05).points_to_measure
    known.requested[request] = True
    known.duration_us[request[:149]] = duration_us[
        request[:149]
    ]  # the check points, and 99 for training
    for count in (50, 40):  # all that may be used for training
        more = next_round(points, known, BUDGET, 0.05).points_to_measure
        assert len(more) == count
        known.requested[more] = True
    rest = next_round(points, known, BUDGET, 0.05).points_to_measure
    assert len(rest) == N - BUDGET.requested and not known.requested[rest].any()
    known.requested[rest] = True
    assert not len(next_round(points, known, BUDGET, 0.05).points_to_measure)


def test_points_known_beforehand_count():
    points, duration_us = surface()
    known = unknown()
    measure(known, np.arange(50, 230), duration_us)
    request = next_round(points, known, BUDGET, 0.01).points_to_measure.tolist()
    assert len(request) == 50  # the check points: there are enough for training
    measure(known, np.array(request), duration_us)
    assert len(next_round(points, known, BUDGET, 0.01).points_to_measure) == 20
    measure(known, np.arange(230, 270), duration_us)
    assert not len(next_round(points, known, BUDGET, 0.01).points_to_measure)
