"""The parts of the variance of each measured mean: its repeats, its session, its device."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collector.quality.evidence import Evidence, Floats, Whole, medians
from collector.quality.statistics import MAD_TO_SIGMA
from collector.quality.variance import Variance

_EDGE = 3.0  # standard deviations, beyond which a session is wild


class Origin(StrEnum):
    """What tells most closely of a case's variance between sessions."""

    THIS_CASE = "this case"  # several sessions measured it
    BAND = "band"  # cases of its stack that several sessions measured
    PRIOR = "prior"  # other stacks, or what is known of the kind of device


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """The relative variances of each measurement's mean, and the degrees of freedom of Student's t
    by which its whole deviation is distributed; `tail_degrees` are those of a single session's."""

    repeats: Floats
    session: Floats
    device: Floats
    degrees: Floats
    origins: Sequence[Origin]
    tail_degrees: float


def parts_of(evidence: Evidence, variance: Variance) -> VarianceParts:
    """The parts of each measurement's variance. Several sessions of a case on one device tell of
    its own variance beside what its group does, the more the more there are."""
    learnt = variance.learnt
    session = variance.ratios[evidence.groups] * evidence.group_spread[evidence.groups] ** 2
    own, free = _own_session_variance(evidence, session + evidence.repeats_variance)
    # Of what all cases of a session share, the group's pairs have told already.
    told = free * (1 - variance.shared**2)
    degrees = variance.degrees[evidence.groups]
    session = (degrees * session + told * own) / (degrees + told)
    other = Origin.PRIOR if variance.is_of_prior else Origin.BAND
    origins = [Origin.THIS_CASE if its else other for its in free.tolist()]
    device = learnt.device_spread**2
    return VarianceParts(
        repeats=evidence.repeats_variance,
        session=session,
        device=np.full(len(session), device),
        degrees=_together(
            evidence.repeats_variance + session, degrees + told, device, variance.device_degrees
        ),
        origins=origins,
        tail_degrees=learnt.tail_degrees,
    )


def _together(session: Floats, degrees: Floats, device: float, device_degrees: float) -> Floats:
    """The degrees of freedom of a sum of two variances, to a tenth, by Satterthwaite; not more than
    those of sessions, whose tails stay in the sum."""
    part = device / np.maximum(session + device, np.finfo(np.float64).tiny)
    lost = (1 - part) ** 2 / degrees + part**2 / device_degrees
    return np.asarray(np.round(np.minimum(degrees, 1 / lost), 1), np.float64)


def _own_session_variance(evidence: Evidence, expected: Floats) -> tuple[Floats, Whole]:
    """What each measurement's own case tells of the variance of sessions, with its degrees of
    freedom: 0 where no device has measured it in two sessions. What lies between devices is not in
    it, nor what the repeats within the sessions account for. A session that is wild, by the others
    and by the `expected` variance of each, counts as one at the edge of them."""
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
    # Of all measurements of the case, also of those that a session made twice.
    told = again.of_all >= 0
    case = again.of_all[told]
    variance[told], free[told] = own[case], of_case[case]
    return variance, free
