"""How far sessions and devices lie apart, and whether intervals hold them: what a stack's own
second measurements tell of its first ones."""

from dataclasses import dataclass, replace

import numpy as np

from collector.quality.evidence import Evidence, Floats, Pairs, contrasts
from collector.quality.stack_interval import reach
from collector.quality.variance import fit
from collector.quality.variance_prior import VariancePrior

SHARES = (0.5, 0.8, 0.95)
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Apart:
    """By how much the two means of so many pairs of sessions differ, as a share of the smaller one:
    half of them by less than `median`, and so on."""

    pairs: int
    median: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """Of so many pairs the share that lies within intervals which state `stated`. Where the model
    that made them `knows_sessions`, it was made of other cases of the same ones."""

    stated: float
    held: float
    pairs: int
    knows_sessions: bool


def apart(pairs: Pairs) -> Apart | None:
    """How far pairs of sessions lie apart; None where there are none."""
    if not len(pairs):
        return None
    found = np.expm1(np.abs(pairs.difference))
    return Apart(len(pairs), *(float(np.quantile(found, share)) for share in (0.5, 0.9, 0.99)))


def reliability(
    evidence: Evidence, prior: VariancePrior, judges: Pairs | None = None
) -> list[Reliability]:
    """Whether intervals hold second sessions: each fifth of the sessions that met is judged by a
    model that the pairs of all others make. Where fewer than five met, each fifth of the cases is,
    by a model that knows the sessions, and what befell them. With `judges` by these pairs alone,
    whose groups, cases and sessions are numbered as those of the evidence."""
    judges = evidence.pairs if judges is None else judges
    if not len(judges):
        return []
    knows_sessions = contrasts(judges.sessions) < _FOLDS
    fold = (judges.cases if knows_sessions else judges.meetings) % _FOLDS
    told = []
    for number in np.unique(fold).tolist():
        judged = judges.only(fold == number)
        pairs = evidence.pairs
        known = (
            np.isin(pairs.cases, judged.cases)
            if knows_sessions
            else np.isin(pairs.sessions, judged.sessions).any(1)
        )
        others = pairs.only(~np.asarray(known))
        told.append(_held(replace(evidence, pairs=others), prior, judged))
    held = np.concatenate(told, axis=1)
    return [
        Reliability(share, float(np.mean(one)), len(judges), knows_sessions)
        for share, one in zip(SHARES, held, strict=True)
    ]


def _held(evidence: Evidence, prior: VariancePrior, pairs: Pairs) -> Floats:
    """Whether intervals hold pairs that are no part of the evidence, a row for each of SHARES."""
    variance = fit(evidence, prior)
    session = 2 * variance.ratios[pairs.groups] * pairs.spread_squared
    device = np.where(pairs.is_same_device, 0.0, 2 * variance.learnt.device_spread**2)
    total, degrees = pairs.repeats_variance + session + device, variance.degrees[pairs.groups]
    differ = np.abs(pairs.difference)
    return np.array([differ <= reach(total, degrees, share) for share in SHARES], np.float64)
