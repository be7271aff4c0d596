"""How the variance between sessions goes with the duration of a case: short kernels differ by more
of their length than long ones. Without it the tails of all cases would have to hold what is but a
difference between decades."""

from dataclasses import dataclass

import numpy as np

from collector.quality.evidence import Floats, Pairs
from collector.quality.pair_likelihood import log_likelihood
from collector.quality.variance_prior import VariancePrior

_SLOPES = np.arange(-8, 9) / 4  # so many powers of ten a decade, to begin with
_NEAR = np.arange(-4, 5) / 20
_SIGMA = 0.5  # by which no trend is expected


@dataclass(frozen=True, slots=True)
class DurationTrend:
    """The variance goes with 10^(slope x decade), 1 at the `middle` one; beyond the decades that
    pairs tell of, from `least` to `most`, it stays as at their ends."""

    slope: float = 0.0
    middle: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def factors(self, decades: Floats) -> Floats:
        """What the variance in each decade is multiplied by."""
        within = np.clip(decades, self.least, self.most) - self.middle
        found: Floats = 10.0 ** (self.slope * within)
        return found


def trend_of(pairs: Pairs, decades: Floats, learnt: VariancePrior) -> DurationTrend:
    """The trend that is most likely by pairs of sessions on one device, in these decades."""
    if not len(pairs):
        return DurationTrend()
    ratios = np.array([learnt.ratio_of(family) for family in pairs.families], np.float64)
    middle, least, most = (round(float(f(decades)), 1) for f in (np.mean, np.min, np.max))

    def likely(slope: float) -> float:
        trend = DurationTrend(slope, middle, least, most)
        variance = 2 * ratios * pairs.spread_squared * trend.factors(decades)
        told = log_likelihood(pairs, variance + pairs.repeats_variance, learnt.tail_degrees)
        return told - (slope / _SIGMA) ** 2 / 2

    coarse = max(_SLOPES.tolist(), key=likely)
    slope = max((coarse + _NEAR).round(2).tolist(), key=likely)
    return DurationTrend(slope, middle, least, most)
