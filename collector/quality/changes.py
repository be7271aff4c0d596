"""Which means differ between two versions of a stack, or two stacks: the ratio of each pair of
means with its interval, and a test of all with the Benjamini-Hochberg procedure.

Each mean has a 95 % interval over sessions and devices, in the logarithm: its standard error and
degrees of freedom give a test of Welch. Pure: arrays in, arrays out.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

FALSE_DISCOVERIES = 0.05  # the expected share of cases without a change among the reported ones
_COVERAGE = 0.95
_LEAST_ERROR = 1e-6  # of a logarithm: no mean is known better


@dataclass(frozen=True, slots=True)
class KnownMeans:
    """Means in microseconds, the upper ends of their 95 % intervals, and the degrees of freedom of
    these. The upper end has the half-width: a profiler's limit extends only the lower one."""

    mean_us: Floats
    high_us: Floats
    degrees: Floats

    @property
    def error(self) -> Floats:
        """Return the standard errors of the logarithms."""
        from scipy.special import stdtrit  # slow to import

        factor = stdtrit(self.degrees, (1 + _COVERAGE) / 2)
        found: Floats = np.log(self.high_us / self.mean_us) / factor
        return np.maximum(found, _LEAST_ERROR)


@dataclass(frozen=True, slots=True)
class MeanChanges:
    """For each pair of means their ratio, later over earlier, with its 95 % interval; the
    probability of so large a difference without a change (`p`), the same adjusted for the number of
    pairs (`q`), and whether the pair is reported as changed."""

    ratio: Floats
    low: Floats
    high: Floats
    p: Floats
    q: Floats
    is_changed: Truths


def mean_changes(
    before: KnownMeans, after: KnownMeans, *, false_discoveries: float = FALSE_DISCOVERIES
) -> MeanChanges:
    """Return how each mean changed. Equal means have no change, whatever their intervals are."""
    from scipy.special import stdtr, stdtrit
    from scipy.stats import false_discovery_control

    size = np.log(after.mean_us / before.mean_us)
    errors = before.error**2, after.error**2
    error = np.sqrt(errors[0] + errors[1])
    # Satterthwaite's degrees of freedom of a difference.
    degrees = (errors[0] + errors[1]) ** 2 / (
        errors[0] ** 2 / before.degrees + errors[1] ** 2 / after.degrees
    )
    p = np.where(size == 0, 1.0, 2 * stdtr(degrees, -np.abs(size) / error))
    q = false_discovery_control(p) if len(p) else p
    reach = stdtrit(degrees, (1 + _COVERAGE) / 2) * error
    return MeanChanges(
        np.exp(size), np.exp(size - reach), np.exp(size + reach), p, q, q <= false_discoveries
    )
