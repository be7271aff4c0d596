"""Kernels with published measurements in two sessions, as if the stack had been upgraded in
between."""

from dataclasses import replace

import numpy as np
import pandas as pd

from collector.quality.changes import KnownMeans
from collector.quality.evidence import SessionMeans, evidence_of
from collector.quality.pooled import half_widths
from collector.quality.upgrades import FEWEST_CASES, MARGIN, RatioEstimate, ratio_estimate
from collector.quality.variance import fit
from collector.quality.variance_parts import variance_parts
from collector.quality.variance_prior import prior_of_backend
from tests.truth.repeats import sessions_of

PRIOR = prior_of_backend("cuda")
CHANGES = (1.0, 1.08, 1 / 1.08)


def known_means(means: SessionMeans) -> KnownMeans:
    """Return the means with the intervals for another session on the same device."""
    evidence = evidence_of(means, repeat_spread=PRIOR.repeat_spread)
    parts = variance_parts(evidence, fit(evidence, PRIOR))
    reach = half_widths(parts.repeats + parts.session, parts.degrees, 0.95)
    return KnownMeans(means.mean_us, means.mean_us * np.exp(reach), parts.degrees)


def at(means: KnownMeans, places) -> KnownMeans:
    return KnownMeans(means.mean_us[places], means.high_us[places], means.degrees[places])


def times(means: KnownMeans, factor: float) -> KnownMeans:
    return replace(means, mean_us=means.mean_us * factor, high_us=means.high_us * factor)


def estimates_of(path) -> list[dict[float, RatioEstimate]]:
    """Return the estimates of each operator of a file, by the factor of its second session."""
    first, second = sessions_of(path)
    before, after = known_means(first), known_means(second)
    place_of = {case: place for place, case in enumerate(first.cases.tolist())}
    places = np.array([place_of[case] for case in second.cases.tolist()], np.int64)
    operators = sum(name.endswith(".mean") for name in pd.read_csv(path, nrows=0).columns)
    found = []
    for operator in range(operators):
        own = np.flatnonzero(second.cases % operators == operator)
        if len(own) >= FEWEST_CASES:
            old, new = at(before, places[own]), at(after, own)
            found.append({by: ratio_estimate(old, times(new, by)) for by in CHANGES})
    return found


def test_changes_of_8_percent_are_found_among_real_sessions(truth):
    paths = sorted((truth / "repeats").glob("*.csv"))
    kernels = [kernel for path in paths for kernel in estimates_of(path)]
    equal = {by: sum(kernel[by].is_within(MARGIN) for kernel in kernels) for by in CHANGES}
    assert len(kernels) >= 50
    assert equal[1.08] == equal[1 / 1.08] == 0  # of 80 kernels each
    assert equal[1.0] >= 0.9 * len(kernels)  # 76 of 80
