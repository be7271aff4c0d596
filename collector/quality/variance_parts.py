"""Parts of the variance of each measured mean: repeats, session, device."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collector.quality.evidence import (
    Evidence,
    Floats,
    Whole,
    medians,
)
from collector.quality.statistics import MAD_TO_SIGMA
from collector.quality.variance import Variance

_EDGE = 3.0  # standard deviations, beyond which a session is an outlier


class Origin(StrEnum):
    """The closest source of a case's variance between sessions."""

    THIS_CASE = "this case"  # several sessions measured it
    BAND = "band"  # cases of its stack that several sessions measured
    PRIOR = "prior"  # other stacks, or the prior of the kind of device
    IMPORTED = "imported"  # the noise of other tools (`quality/imported.py`)


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Relative variances of each measurement's mean, and the degrees of freedom of Student's t
    of its whole deviation; `tail_degrees` are those of a single session."""

    repeats: Floats
    session: Floats
    device: Floats
    degrees: Floats
    origins: Sequence[Origin]
    tail_degrees: float


def variance_parts(evidence: Evidence, variance: Variance) -> VarianceParts:
    """Return the parts of each measurement's variance. If a device has measured a case in
    several sessions, their own variance is pooled with the group's; more sessions weigh more."""
    learnt = variance.learnt
    session = variance.ratios[evidence.groups] * evidence.group_spread[evidence.groups] ** 2
    own, free = _own_session_variance(evidence, session + evidence.repeats_variance)
    # The group's pairs have already determined what all cases of a session share.
    known = free * (1 - variance.shared**2)
    degrees = variance.degrees[evidence.groups]
    session = (degrees * session + known * own) / (degrees + known)
    other = Origin.PRIOR if variance.is_of_prior else Origin.BAND
    origins = [Origin.THIS_CASE if its else other for its in free.tolist()]
    device = learnt.device_spread**2
    return VarianceParts(
        repeats=evidence.repeats_variance,
        session=session,
        device=np.full(len(session), device),
        degrees=_satterthwaite_degrees(
            evidence.repeats_variance + session, degrees + known, device, variance.device_degrees
        ),
        origins=origins,
        tail_degrees=learnt.tail_degrees,
    )


def _satterthwaite_degrees(
    session: Floats, degrees: Floats, device: float, device_degrees: float
) -> Floats:
    """Return the Satterthwaite degrees of freedom of a sum of two variances, to a tenth; at most
    those of the sessions, whose tails remain in the sum."""
    part = device / np.maximum(session + device, np.finfo(np.float64).tiny)
    lost = (1 - part) ** 2 / degrees + part**2 / device_degrees
    return np.asarray(np.round(np.minimum(degrees, 1 / lost), 1), np.float64)


def _own_session_variance(evidence: Evidence, expected: Floats) -> tuple[Floats, Whole]:
    """Return the variance between sessions of each measurement's own case, and its degrees of
    freedom: 0 if no device has measured the case in two sessions.

    The variance between devices and that of the repeats within the sessions are excluded. A session
    that is an outlier, by the other sessions and by the `expected` variance of each, is clipped to
    the limit."""
    means, again = evidence.means, evidence.again
    variance, free = np.zeros(len(means.cases)), np.zeros(len(means.cases), np.int64)
    if not len(again.places):
        return variance, free
    cell = again.cell
    logs = np.log(means.mean_us[again.places])
    off = logs - medians(logs, cell)[cell]
    typical = MAD_TO_SIGMA * medians(np.abs(off), again.case)[again.case]
    edge = _EDGE * np.maximum(typical, np.sqrt(expected[again.places]))
    off = np.clip(off, -edge, edge)
    centre = np.bincount(cell, off) / np.bincount(cell)
    squares = np.bincount(again.case, (off - centre[cell]) ** 2)
    of_case = again.count - np.bincount(again.case_of_cell)
    repeats = np.bincount(again.case, evidence.repeats_variance[again.places]) / again.count
    own = np.maximum(0.0, squares / np.maximum(of_case, 1) - repeats)
    # For all measurements of the case, also for repeated ones of the same session.
    known = again.of_all >= 0
    case = again.of_all[known]
    variance[known], free[known] = own[case], of_case[case]
    return variance, free
