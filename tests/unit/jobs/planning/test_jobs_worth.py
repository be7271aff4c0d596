"""The order in which cases are worth measuring, and the gain."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.ops.registry import find_operator
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.coverage import CoverageStatus, CoveredCase
from jobs.planning.forecast import Peaks
from jobs.planning.workload import WorkloadCase
from jobs.planning.worth import curve, ranked_gains, within
from tests.unit.jobs.planning.test_jobs_coverage import product, record

pytestmark = pytest.mark.fast

_PEAKS = Peaks({"float32": 1e12}, 1e11, 1e-5, 1e9, 20.0, 20.0)


def campaign(backend="cpu"):
    text = f"campaign: c\nsources: [{{bundled: quickstart}}]\nbackend: {backend}\n"
    return campaign_from_text(text, path="c", base=None)


def ordered(*found):
    return ranked_gains(found, campaign(), _PEAKS, find_operator)


def expected(rows, time_us, standing, kernel="MatMulV2"):
    return CoveredCase(WorkloadCase(product(rows, kernel=kernel), 10, time_us), standing)


def test_unknown_time_precedes_interpolated_time():
    near = expected(16, 300.0, CoverageStatus.BETWEEN)
    far = expected(17, 100.0, CoverageStatus.MISSING)
    found = ordered(near, far, expected(18, 600.0, CoverageStatus.EXACT))
    assert [gain.record for gain in found] == [far.workload.record, near.workload.record]
    assert [gain.share for gain in found] == [0.1, 0.3]
    points = curve([near, far, expected(18, 600.0, CoverageStatus.EXACT)], found)
    assert [point.share for point in points] == pytest.approx([0.6, 0.7, 1.0])
    assert [point.cases for point in points] == [0, 1, 2]


def test_unsupported_and_failed_cases_are_not_requested():
    odd = CoveredCase(
        WorkloadCase(record("MatMulV2", "4,8;9,6", "4,6"), 1, 9.0), CoverageStatus.MISSING
    )
    assert ordered(odd, expected(16, 9.0, CoverageStatus.FAILED)) == ()


def test_cheap_case_precedes_a_costly_one_with_equal_time():
    large, small = (
        expected(1 << 16, 100.0, CoverageStatus.MISSING),
        expected(8, 100.0, CoverageStatus.MISSING),
    )
    assert [gain.record for gain in ordered(large, small)] == [
        small.workload.record,
        large.workload.record,
    ]


def test_first_case_pays_for_the_start_of_a_session():
    first, second = ordered(*(expected(rows, 9.0, CoverageStatus.MISSING) for rows in (16, 17)))
    assert first.device_s > 20.0 > 1.0 > second.device_s


_CASES = st.lists(
    st.tuples(st.integers(1, 4096), st.floats(0, 1e6), st.sampled_from(list(CoverageStatus))),
    unique_by=lambda case: case[0],
    max_size=8,
)


@pytest.mark.thorough
@given(_CASES, st.floats(0, 1))
def test_budget_is_kept_and_a_larger_one_never_covers_less(cases, budget_h):
    found = [expected(*case) for case in cases]
    first = ordered(*found)
    points = curve(found, first)
    assert len(points) == len(first) + 1
    for one, other in pairwise(points):
        assert one.device_h < other.device_h and one.share <= other.share
    paid = within(first, budget_h)
    assert paid == first[: len(paid)] and sum(gain.device_s for gain in paid) <= budget_h * 3600
    if len(paid) < len(first):
        assert points[len(paid) + 1].device_h > budget_h
