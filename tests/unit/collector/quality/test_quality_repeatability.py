"""Second sessions compared with first ones: their differences, and the coverage of intervals."""

from dataclasses import replace

import numpy as np
import pytest

from collector.quality.evidence import evidence_of
from collector.quality.pooled import SHARES, coverage_of_intervals, session_differences
from tests.unit.collector.quality.test_quality_variance import PRIOR, chosen, drawn

pytestmark = pytest.mark.fast


def test_estimated_differences_equal_the_drawn_ones() -> None:
    evidence = evidence_of(drawn(800, 2, session_sd=0.05), repeat_spread=0.01)
    found = session_differences(evidence.pairs)
    assert found is not None and found.pairs == 800
    assert found.median == pytest.approx(np.expm1(0.05 * 2**0.5 * 0.6745), rel=0.1)
    assert found.median < found.p90 < found.p99


@pytest.mark.parametrize("device_sd", [0.0, 0.1])
def test_intervals_cover_unseen_cases_at_the_stated_rate(device_sd: float) -> None:
    means = drawn(1500, 2, session_sd=0.04, device_sd=device_sd)
    reported = coverage_of_intervals(evidence_of(means, repeat_spread=0.01), PRIOR)
    assert [one.nominal for one in reported] == list(SHARES)
    assert {one.pairs for one in reported} == {1500}
    assert [one.covered for one in reported] == pytest.approx(SHARES, abs=0.05)


def test_only_the_given_pairs_are_used_for_coverage() -> None:
    evidence = evidence_of(drawn(200, 2, session_sd=0.04), repeat_spread=0.01)
    some = evidence.pairs.only(evidence.pairs.cases < 50)
    for differ, held in ((0.0, 1.0), (9.0, 0.0)):
        judges = replace(some, difference=np.full(50, differ))
        reported = coverage_of_intervals(evidence, PRIOR, judges)
        assert [(one.covered, one.pairs) for one in reported] == [(held, 50)] * len(SHARES)


def test_single_sessions_give_no_differences_and_no_coverage() -> None:
    evidence = evidence_of(drawn(20, 1, session_sd=0.05), repeat_spread=0.01)
    assert (
        session_differences(evidence.pairs) is None and coverage_of_intervals(evidence, PRIOR) == []
    )


def test_coverage_is_computed_for_few_pairs() -> None:
    reported = coverage_of_intervals(
        evidence_of(drawn(2, 2, session_sd=0.05), repeat_spread=0.01), PRIOR
    )
    assert {one.pairs for one in reported} == {2}


def test_coverage_of_a_session_is_computed_without_its_own_pairs() -> None:
    """Of twelve sessions each two measure separate cases; one in six is half as slow again. A model
    that knew it would cover all of its pairs, or none."""
    means = drawn(120, 12, session_sd=0.004, outlier=1)
    of_two = (means.cases // 20) == (means.sessions // 2)
    places = np.flatnonzero(of_two).tolist()
    reported = coverage_of_intervals(evidence_of(chosen(means, places), repeat_spread=0.01), PRIOR)
    assert not any(one.knows_sessions for one in reported) and {one.pairs for one in reported} == {
        120
    }
    assert reported[-1].covered == pytest.approx(5 / 6, abs=0.02)
    first = chosen(means, [at for at in places if means.sessions[at] < 2])
    assert all(
        one.knows_sessions
        for one in coverage_of_intervals(evidence_of(first, repeat_spread=0.01), PRIOR)
    )
