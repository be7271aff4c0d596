"""A mean counts the repeats that it leaves out, warns of many, and is refused for too many."""

from math import exp
from random import Random
from statistics import fmean

import pytest

from collector.model.measurement import Outcome
from collector.quality.gates import (
    OUTLIER_LIMIT,
    OUTLIERS,
    gate_of_outcome,
    gate_of_warning,
    no_single_duration,
    timing_warnings,
)
from collector.quality.statistics import find_trend, summarise, two_modes
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

WARNED, REFUSED = "warned", "refused"


def verdict(durations_us):
    """Return the timing, the gates that warn of the repeats, and the refusal."""
    found = summarise(durations_us)
    accepted = len(found.accepted_us)
    warnings = [*timing_warnings(found.timing, accepted), find_trend(durations_us)]
    warnings += [str(two_modes(durations_us) or "")]
    gates = {gate_of_warning(warning) for warning in warnings if warning}
    return found.timing, gates, no_single_duration(found.timing, accepted)


def planted(*modes, spread=0.004, seed=1):
    """Return the repeats of modes of a count and a duration, in a random order."""
    random = Random(seed)
    series = [us * random.gauss(1, spread) for count, us in modes for _ in range(count)]
    random.shuffle(series)
    return series


RISING = [10.0 + n % 3 / 100 for n in range(51)]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (planted((81, 10), (19, 100)), WARNED),
        (planted((81, 10), (19, 1000)), WARNED),
        (planted((70, 10), (30, 100)), WARNED),
        (planted((60, 10), (40, 12)), WARNED),
        (planted((60, 10), (40, 20)), REFUSED),
        (planted((60, 10), (14, 20), (13, 40), (13, 80)), REFUSED),
        (planted((55, 10), (12, 20), (11, 30), (11, 40), (11, 50)), REFUSED),
        (planted((51, 10), *((1, 11 + 1.8 * n) for n in range(49))), REFUSED),
        (planted((51, 10), *((1, 10 * 1.1**n) for n in range(1, 50))), REFUSED),
        (planted((94, 10), *((1, 10 * 2**n) for n in range(1, 7))), WARNED),
        (planted((99, 10), (1, 1000)), WARNED),  # one repeat doubles the mean
        ([*RISING, *(11 + 1.8 * n for n in range(49))], REFUSED),
        ([*RISING[:12], *(20 * 1.4**n for n in range(11))], REFUSED),
        (planted((5, 10), (4, 100)), WARNED),  # so few may be those of a moment
        (planted((3, 10), (2, 1000)), WARNED),
        (planted((3, 10), (1, 1000)), WARNED),
        (planted((2, 10), (1, 1000)), WARNED),
        (planted((60, 10), (40, 10.6)), WARNED),  # 40 % are outliers, but the mean is that of all
    ],
)
def test_repeats_left_out_are_counted_and_reported(series, expected):
    timing, gates, refusal = verdict(series)
    kept = round(len(series) * (1 - timing.outlier_share))
    assert kept == len(summarise(series).accepted_us) < len(series)
    assert timing.untrimmed_us == pytest.approx(fmean(series))
    assert OUTLIERS in gates
    assert bool(refusal) == (expected is REFUSED)
    if refusal:
        assert gate_of_outcome(Outcome.GATED, refusal) == OUTLIERS
        assert names(refusal, len(series) - kept, len(series))


def test_series_of_any_modes_is_never_off_without_a_warning():
    """Two to five modes, with tails and trends, of few repeats and of many: whenever the mean is
    not that of all repeats, something says so."""
    random = Random(5)
    for _ in range(3000):
        count = random.choice((3, 4, 5, 7, 9, 12, 20, 30, 60, 100))
        modes = [10 * exp(random.expovariate(1)) for _ in range(random.randint(1, 5))]
        weights = [random.random() ** 2 for _ in modes]
        series = [us * random.gauss(1, 0.004) for us in random.choices(modes, weights, k=count)]
        if random.random() < 0.3:
            series[-1] *= 10 ** random.uniform(0, 3)
        if random.random() < 0.3:
            series.sort()
        timing, gates, _ = verdict(series)
        is_off = abs(fmean(series) / timing.mean_us - 1) > OUTLIER_LIMIT
        assert gates or not is_off, series


@pytest.mark.parametrize(("count", "most"), [(5, 0.01), (10, 0.01), (30, 0.002), (100, 0.0)])
def test_steady_series_has_no_warning(count, most):
    found = [verdict(planted((count, 10), spread=0.01, seed=seed)) for seed in range(500)]
    assert sum(OUTLIERS in gates for _, gates, _ in found) <= most * len(found)
    assert not any(refusal for _, _, refusal in found)
    timing, gates, _ = verdict([*planted((99, 10)), 11.0])  # an interruption: counted, no warning
    assert timing.outlier_share == 0.01 and not gates


def test_timing_without_outliers_has_neither_number():
    timing = summarise([10.0, 10.1, 9.9]).timing
    assert (timing.outlier_share, timing.untrimmed_us) == (0.0, 0.0)
