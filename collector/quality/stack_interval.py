"""The interval of a number: where the mean lies that its stack would show over sessions and
devices, as the sessions that measured it and the model of variance tell it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collector.quality.evidence import Evidence, Floats, Whole
from collector.quality.pooling import pooled_means
from collector.quality.variance import Variance
from collector.quality.variance_parts import Origin, parts_of

_MOST_LOG = 10.0  # an interval that reaches further than 22,000 times says nothing more


@dataclass(frozen=True, slots=True)
class StackIntervals:
    """An interval for the case of each measurement, in microseconds, with its degrees of freedom,
    about the mean of so many sessions."""

    mean_us: Floats
    sessions: Whole
    low_us: Floats
    high_us: Floats
    degrees: Floats
    origins: Sequence[Origin]


def stack_intervals(
    evidence: Evidence, variance: Variance, *, share: float = 0.95
) -> StackIntervals:
    """Where the mean of the stack lies, for the case of each measurement, with this share."""
    parts = parts_of(evidence, variance)
    pooled = pooled_means(evidence, parts)
    factor = np.exp(np.minimum(reach(pooled.variance, parts.degrees, share), _MOST_LOG))
    low_us = np.maximum(pooled.mean_us / factor, np.finfo(np.float64).tiny)
    return StackIntervals(
        pooled.mean_us,
        pooled.sessions,
        low_us,
        pooled.mean_us * factor,
        parts.degrees,
        parts.origins,
    )


def reach(variance: Floats, degrees: Floats, share: float) -> Floats:
    """How far an interval of this share reaches to each side, for variances that are known with so
    many degrees of freedom."""
    from scipy.special import stdtrit  # slow to import: for who needs a number, not for `--help`

    kinds, kind = np.unique(degrees, return_inverse=True)  # hundreds of thousands have few
    found: Floats = stdtrit(kinds, (1 + share) / 2)[kind] * np.sqrt(variance)
    return found
