"""Intervals that reach their coverage for any distribution of errors."""

import numpy as np
import pytest

from collector.surfaces.rounds import Estimate, estimate_half_widths, misses

pytestmark = pytest.mark.fast


def _wrong_model(points: int) -> tuple[Estimate, np.ndarray]:
    """Return a model with half of the true uncertainty, a bias of 3 % on average, and without half
    of the noise; and the durations of the points, in us."""
    draw = np.random.default_rng(7)
    log_us, error = draw.uniform(0, 8, points), draw.choice([0.01, 0.05], points)
    noise = 2 * error * draw.standard_t(3, points) * draw.choice([1, 2], points)
    return Estimate(log_us, error), np.exp(log_us + 0.03 + noise)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_of_a_wrong_model_reach_their_coverage(level):
    found, duration_us = _wrong_model(40_000)
    held = np.arange(2_000)
    widths = estimate_half_widths(found, misses(found, held, duration_us[held]), level)
    off = np.abs(np.log(duration_us) - found.log_us)[2_000:]
    assert np.mean(off <= widths[2_000:]) == pytest.approx(level, abs=0.02)


def test_an_interval_is_as_wide_as_the_error_expected():
    found, duration_us = _wrong_model(1_000)
    widths = estimate_half_widths(found, misses(found, np.arange(200), duration_us[:200]), 0.9)
    assert widths / found.error == pytest.approx(widths[0] / found.error[0])


def test_too_few_points_give_an_infinite_interval():
    found, duration_us = _wrong_model(100)
    missed = misses(found, np.arange(18), duration_us[:18])
    assert np.isinf(estimate_half_widths(found, missed, 0.95)).all()
    assert np.isfinite(estimate_half_widths(found, np.append(missed, 1.0), 0.95)).all()
