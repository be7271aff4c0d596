"""One number of a case that several sessions have measured: where the model of variance has the
mean of its stack, and how firmly."""

from dataclasses import dataclass

import numpy as np

from collector.quality.evidence import Evidence, Floats, Whole, medians
from collector.quality.variance_parts import VarianceParts

_ROUNDS = 4  # of weighing anew; more change the fifth digit


@dataclass(frozen=True, slots=True)
class PooledMeans:
    """Of each measurement's case the mean over its sessions, the relative variance of that mean,
    and how many sessions it is of: of a single one, the measurement's own."""

    mean_us: Floats
    variance: Floats
    sessions: Whole


def pooled_means(evidence: Evidence, parts: VarianceParts) -> PooledMeans:
    """The means of all cases.

    Sessions weigh by their variance, those of one device share the device's. Of more than two, one
    that lies far from the others weighs less, by Student's t. Where a case has clean measurements,
    those with warnings do not count.
    """
    means, again = evidence.means, evidence.again
    mean_us = means.mean_us.copy()
    variance = parts.repeats + parts.session + parts.device
    sessions = np.ones(len(mean_us), np.int64)
    if not len(again.places):
        return PooledMeans(mean_us, variance, sessions)
    centres, of_case = _centres(evidence, parts)
    firsts = np.unique(again.case, return_index=True)[1]
    own_us = mean_us[again.places]
    low_us, high_us = np.minimum.reduceat(own_us, firsts), np.maximum.reduceat(own_us, firsts)
    # Where all are equal that is the mean, to the last digit and on every machine.
    centre_us = np.where(low_us == high_us, low_us, np.clip(np.exp(centres), low_us, high_us))
    # Of all measurements of the case, also of those that a session made twice.
    is_pooled = again.of_all >= 0
    case = again.of_all[is_pooled]
    mean_us[is_pooled] = centre_us[case]
    variance[is_pooled] = of_case[case]
    sessions[is_pooled] = again.count[case]
    return PooledMeans(mean_us, variance, sessions)


def _centres(evidence: Evidence, parts: VarianceParts) -> tuple[Floats, Floats]:
    """The logarithm of each case's mean, and its variance."""
    again = evidence.again
    places, case, cell = again.places, again.case, again.cell
    logs = np.log(evidence.means.mean_us[places])
    own = (parts.repeats + parts.session)[places]
    shared = parts.device[places]
    device = np.bincount(cell, shared) / np.bincount(cell)
    tails = parts.tail_degrees
    several = np.bincount(case)[case] > 2
    centre = medians(logs, case)
    for _ in range(_ROUNDS):
        far = np.where(several, (logs - centre[case]) ** 2 / (own + shared), 0.0)
        weight = np.minimum(1.0, (tails + 1) / (tails + far)) / own
        of_cell = np.bincount(cell, weight)
        mean = np.bincount(cell, weight * logs) / of_cell
        firm = 1 / (1 / of_cell + device)
        of_case = np.bincount(again.case_of_cell, firm)
        centre = np.bincount(again.case_of_cell, firm * mean) / of_case
    return np.asarray(centre, np.float64), np.asarray(1 / of_case, np.float64)
