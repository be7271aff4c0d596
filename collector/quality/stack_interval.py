"""The interval of a number: where the mean lies that its stack would show over sessions and
devices, as one session's mean and the model of variance tell it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collector.quality.evidence import Evidence, Floats, own_session_variance
from collector.quality.variance import Variance

_MOST_LOG = 10.0  # an interval that reaches further than 22,000 times says nothing more


class Origin(StrEnum):
    """What tells most closely of a case's variance between sessions."""

    THIS_CASE = "this case"  # several sessions measured it
    BAND = "band"  # cases of its stack that several sessions measured
    PRIOR = "prior"  # other stacks, or what is known of the kind of device


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """The relative variances of each measurement's mean, and the degrees of freedom of Student's t
    by which its whole deviation is distributed."""

    repeats: Floats
    session: Floats
    device: Floats
    degrees: Floats
    origins: Sequence[Origin]


@dataclass(frozen=True, slots=True)
class StackIntervals:
    """An interval for each measurement, in microseconds, with its degrees of freedom."""

    low_us: Floats
    high_us: Floats
    degrees: Floats
    origins: Sequence[Origin]


def parts_of(evidence: Evidence, variance: Variance) -> VarianceParts:
    """The parts of each measurement's variance. Several sessions of a case on one device tell of
    its own variance beside what its group does, the more the more there are."""
    learnt = variance.learnt
    session = variance.ratios[evidence.groups] * evidence.group_spread[evidence.groups] ** 2
    own, free = own_session_variance(evidence)
    session = (variance.degrees * session + free * own) / (variance.degrees + free)
    other = Origin.PRIOR if variance.is_of_prior else Origin.BAND
    origins = [Origin.THIS_CASE if its else other for its in free.tolist()]
    return VarianceParts(
        repeats=evidence.repeats_variance,
        session=session,
        device=np.full(len(session), learnt.device_spread**2),
        degrees=np.asarray(variance.degrees + free, np.float64),
        origins=origins,
    )


def stack_intervals(
    evidence: Evidence, variance: Variance, *, share: float = 0.95
) -> StackIntervals:
    """Where the mean of the stack lies, for each measurement, with this share."""
    parts = parts_of(evidence, variance)
    total = parts.repeats + parts.session + parts.device
    factor = np.exp(np.minimum(reach(total, parts.degrees, share), _MOST_LOG))
    mean_us = evidence.means.mean_us
    low_us = np.maximum(mean_us / factor, np.finfo(np.float64).tiny)
    return StackIntervals(low_us, mean_us * factor, parts.degrees, parts.origins)


def reach(variance: Floats, degrees: Floats, share: float) -> Floats:
    """How far an interval of this share reaches to each side, for variances that are known with so
    many degrees of freedom."""
    from scipy.special import stdtrit  # slow to import: for who needs a number, not for `--help`

    found: Floats = stdtrit(degrees, (1 + share) / 2) * np.sqrt(variance)
    return found
