"""Ratios of sessions that took turns: intervals hold the true ratio as often as they state."""

from collections.abc import Callable
from math import log

import numpy as np
import pytest

from collector.quality.changes import Floats, paired_ratios

pytestmark = pytest.mark.fast
_PAIRS = 6
_SAMPLES = 800


def _normal(draw: np.random.Generator) -> Floats:
    return draw.normal(0, 0.1, 2 * _PAIRS)


def _bimodal(draw: np.random.Generator) -> Floats:
    return np.where(draw.random(2 * _PAIRS) < 0.25, 0.6, 0.0) + draw.normal(0, 0.03, 2 * _PAIRS)


def _disturbed(draw: np.random.Generator) -> Floats:
    rare = np.where(draw.random(2 * _PAIRS) < 0.1, draw.exponential(1, 2 * _PAIRS), 0.0)
    return rare + draw.normal(0, 0.03, 2 * _PAIRS)


def _drifting(draw: np.random.Generator) -> Floats:
    return np.linspace(0, 1.0, 2 * _PAIRS) + draw.normal(0, 0.03, 2 * _PAIRS)


def _differences(times: Floats) -> list[float]:
    """Return the differences of pairs of sessions in the order AB BA AB BA."""
    pairs = times.reshape(_PAIRS, 2)
    signs = np.where(np.arange(_PAIRS) % 2 == 0, 1, -1)
    return ((pairs[:, 1] - pairs[:, 0]) * signs).tolist()


@pytest.mark.parametrize("kind", [_normal, _bimodal, _disturbed, _drifting])
def test_interval_holds_the_true_ratio(kind: Callable[[np.random.Generator], Floats]) -> None:
    draw = np.random.default_rng(1)
    samples = [_differences(kind(draw)) for _ in range(_SAMPLES)]
    found = paired_ratios(samples)
    assert np.mean([one.low <= 1.0 <= one.high for one in found]) >= 0.93
    beyond = paired_ratios([[d + log(1.06) for d in one] for one in samples])
    assert np.mean([one.finding == "equal" for one in beyond]) <= 0.06


def test_findings_are_changed_equal_and_inconclusive() -> None:
    noise = [0.01, -0.01, 0.005, -0.005]
    wide = [20 * one for one in noise]
    changed, equal, open_one = paired_ratios([[log(1.3) + d for d in noise], noise, wide])
    assert [one.finding for one in (changed, equal, open_one)] == [
        "changed",
        "equal",
        "inconclusive",
    ]
    assert changed.low < 1.3 < changed.high and changed.ratio == pytest.approx(1.3)
    assert open_one.detectable > 1.1 and open_one.pairs_for_10_pct > open_one.pairs == 4
    assert paired_ratios([wide], margin=0.5)[0].finding == "equal"
    assert paired_ratios([]) == []


def test_many_cases_bound_the_false_discoveries() -> None:
    draw = np.random.default_rng(2)
    found = paired_ratios([_differences(_normal(draw)) for _ in range(400)])
    assert sum(one.finding == "changed" for one in found) <= 2
