"""Whether a kernel takes as long on a new stack as on an old one, from a sample of its cases.

Equivalence is shown by two one-sided tests (TOST) on the logarithm of the ratio: the kernel is
equal if the 90 % interval of its mean ratio is within the margin. Each case's ratio has the
variance of both means over sessions and devices, by the model of variance. A part of it is common
to all cases of a session, so that more cases of one session do not reduce it. Pure: arrays in,
numbers out.
"""

from dataclasses import dataclass
from math import log, log1p, sqrt

import numpy as np

from collector.quality.changes import Floats, KnownMeans
from collector.quality.variance import SHARED_PART

MARGIN = 0.05  # share of a duration: what a reused duration may be wrong by
_ERROR = 0.05  # probability that a kernel beyond the margin passes a test
_POWER = 0.9  # probability that an unchanged kernel is shown equal
_OF_POSSIBLE = 0.95  # of the power that any number of cases would have, if that is less
FEWEST_CASES = 6  # fewer do not show how far cases of a kernel differ
MOST_CASES = 40
SESSIONS = 2  # that measure a sampled case: the second costs little and halves the variance
_COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """The ratio of a kernel's durations, later over earlier, from sampled cases.

    `error` and `degrees` are the standard error of its logarithm and the degrees of freedom;
    `scatter` is the standard deviation of the logarithm among the cases beyond their noise."""

    ratio: float
    error: float
    degrees: float
    scatter: float
    cases: int

    def interval(self, coverage: float = _COVERAGE) -> tuple[float, float]:
        """Return the interval of the mean ratio with this coverage."""
        reach = float(np.exp(_quantile((1 + coverage) / 2, self.degrees) * self.error))
        return self.ratio / reach, self.ratio * reach

    def is_within(self, margin: float) -> bool:
        """Return whether the ratio is shown to be within the margin, for the mean of the cases and
        for a typical case."""
        size = abs(log(self.ratio))
        reach = _quantile(1 - _ERROR, self.degrees) * self.error
        return size + max(reach, self.scatter) <= log1p(margin)


def ratio_estimate(before: KnownMeans, after: KnownMeans) -> RatioEstimate:
    """Return the ratio of the means of the same cases, at least one, on two stacks."""
    logs = np.log(after.mean_us / before.mean_us)
    count, mean = len(logs), float(np.mean(logs))
    typical = float(np.mean(before.error**2 + after.error**2))
    own = (1 - SHARED_PART) * typical
    observed = float(np.var(logs, ddof=1)) if count > 1 else own
    error = sqrt(SHARED_PART * typical + max(own, observed) / count)
    scatter = sqrt(max(0.0, observed - own))
    return RatioEstimate(float(np.exp(mean)), error, _degrees(before, after), scatter, count)


def _degrees(before: KnownMeans, after: KnownMeans) -> float:
    """Return the degrees of freedom of differences of means. Sessions have outliers, which remain
    in a mean over cases of one session, so that the degrees do not add up."""
    return float(np.median(np.minimum(before.degrees, after.degrees)))


def power(variance: float, degrees: float, cases: Floats, margin: float) -> Floats:
    """Return the probability that an unchanged kernel is shown equal, for numbers of cases.

    Args:
        variance: of the difference of one case's logarithms, with these `degrees`."""
    from scipy.special import stdtr  # slow to import: needed for numbers only, not for `--help`

    error = np.sqrt(variance * (SHARED_PART + (1 - SHARED_PART) / cases))
    room = log1p(margin) / error - _quantile(1 - _ERROR, degrees)
    found: Floats = np.maximum(0.0, 2 * stdtr(degrees, room) - 1)
    return found


def expected_variance(before: KnownMeans, sessions: Floats) -> tuple[float, float]:
    """Return the variance that the difference of one case's logarithms will have, and its degrees
    of freedom, if SESSIONS sessions measure it on the new stack. `before` are means of so many
    sessions."""
    of_new = before.error * np.sqrt(sessions / SESSIONS)
    expected = KnownMeans(before.mean_us, before.mean_us, before.degrees)
    variance = before.error**2 + of_new**2
    return float(np.mean(variance)), _degrees(before, expected)


def sample_size(variance: float, degrees: float, margin: float) -> int:
    """Return the number of cases that shows an unchanged kernel equal with a power of 90 %, or
    with nearly that of any number of cases if it is less. 0 if no number of cases shows it."""
    counts = np.arange(FEWEST_CASES, MOST_CASES + 1, dtype=np.float64)
    found = power(variance, degrees, counts, margin)
    if not found[-1]:
        return 0
    return int(counts[np.argmax(found >= min(_POWER, _OF_POSSIBLE * found[-1]))])


def reused_means(before: KnownMeans, ratio: RatioEstimate) -> KnownMeans:
    """Return the means on the new stack of cases that were not measured there: the old ones times
    the ratio, with the variance of both and the scatter of the cases about the ratio. What a
    session of the old stack shares is counted once, in the ratio: it cancels if the session has
    measured the sampled cases, too, and is that of the case if it has not."""
    own = (1 - SHARED_PART) * before.error**2
    parts = own, np.full(len(own), ratio.error**2 + ratio.scatter**2)
    variance = parts[0] + parts[1]
    degrees = variance**2 / (parts[0] ** 2 / before.degrees + parts[1] ** 2 / ratio.degrees)
    reach = _quantiles((1 + _COVERAGE) / 2, degrees) * np.sqrt(variance)
    mean_us = before.mean_us * ratio.ratio
    return KnownMeans(mean_us, mean_us * np.exp(reach), degrees)


def _quantile(share: float, degrees: float) -> float:
    return float(_quantiles(share, np.array([degrees]))[0])


def _quantiles(share: float, degrees: Floats) -> Floats:
    from scipy.special import stdtrit  # slow to import: needed for numbers only, not for `--help`

    found: Floats = stdtrit(degrees, share)
    return found
