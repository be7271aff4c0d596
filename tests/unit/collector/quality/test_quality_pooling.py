"""The mean of a case over the sessions that measured it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.quality.evidence import SessionMeans, Trust, evidence_of
from collector.quality.pooled import PooledMeans, pooled_means
from collector.quality.variance import Variance
from collector.quality.variance_parts import variance_parts
from collector.quality.variance_prior import VariancePrior

pytestmark = pytest.mark.fast

PRIOR = VariancePrior(
    ratio=1.0, tail_degrees=3.0, repeat_spread=0.01, device_spread=0.02, weight=10
)


def of_one_case(
    mean_us: list[float],
    *,
    devices: list[int] | None = None,
    sessions: list[int] | None = None,
    trust: list[Trust] | None = None,
    prior: VariancePrior = PRIOR,
) -> PooledMeans:
    """Return the pooled result of one case's measurements, among a hundred others of one session
    each."""
    count, more = len(mean_us), 100
    total = count + more
    means = SessionMeans(
        cases=np.append(np.full(count, 50), np.delete(np.arange(more + 1), 50)),
        families=["matmul"] * total,
        sessions=np.append(sessions or np.arange(count), np.full(more, count)),
        devices=np.append(devices or [0] * count, np.zeros(more, np.int64)),
        mean_us=np.append(mean_us, np.full(more, 7.0)),
        spreads=np.full(total, 0.01),
        repeats=np.full(total, 25.0),
        trust=np.append(trust or [Trust.CLEAN] * count, np.full(more, Trust.CLEAN)),
    )
    evidence = evidence_of(means, repeat_spread=0.01)
    ratios = np.full(len(evidence.group_names), prior.ratio)
    variance = Variance(
        prior,
        ratios,
        np.full(len(ratios), 3.0),
        shared=0.0,
        device_degrees=10.0,
        is_of_prior=True,
    )
    parts = variance_parts(evidence, variance)
    found = pooled_means(evidence, parts)
    assert set(found.mean_us[count:]) == {7.0} and set(found.sessions[count:]) == {1}
    alone = (parts.repeats + parts.session + parts.device)[count:]
    assert found.variance[count:] == pytest.approx(alone)
    return PooledMeans(found.mean_us[:count], found.variance[:count], found.sessions[:count])


def test_single_session_is_its_own_mean() -> None:
    assert of_one_case([123.456]).mean_us.tolist() == [123.456]


def test_sessions_of_one_device_are_averaged_with_a_smaller_variance() -> None:
    one, two = of_one_case([10.0]), of_one_case([10.0, 10.4])
    assert two.mean_us == pytest.approx([104**0.5] * 2, rel=1e-9)
    assert two.sessions.tolist() == [2, 2]
    same = of_one_case([10.0, 10.0, 10.0])
    assert same.mean_us == pytest.approx([10.0] * 3)
    assert PRIOR.device_spread**2 < same.variance[0] < one.variance[0]


def test_one_outlying_session_in_ten_does_not_shift_the_mean() -> None:
    steady = [10.0, 10.1, 9.9, 10.05, 9.95, 10.0, 10.02, 9.98, 10.0]
    found = of_one_case([*steady, 80.0])
    assert found.mean_us[0] == pytest.approx(10.0, rel=0.03)
    assert of_one_case([80.0, *steady]).mean_us[0] == pytest.approx(found.mean_us[0], rel=1e-9)


def test_two_distant_sessions_have_equal_weights() -> None:
    assert of_one_case([10.0, 1000.0]).mean_us == pytest.approx([100.0, 100.0])


def test_sessions_of_one_device_share_its_deviation() -> None:
    devices = replace(PRIOR, device_spread=0.5)
    found = of_one_case([10.0, 10.0, 10.0, 12.0], devices=[0, 0, 0, 1], prior=devices)
    assert found.mean_us[0] == pytest.approx(120**0.5, rel=0.03)
    alike = of_one_case([10.0, 10.0, 10.0, 12.0], devices=[0, 1, 2, 3], prior=devices)
    assert alike.mean_us[0] < found.mean_us[0]
    assert alike.variance[0] < found.variance[0]


def test_sessions_with_warnings_are_ignored_if_clean_ones_exist() -> None:
    found = of_one_case([10.0, 30.0, 10.0], trust=[Trust.CLEAN, Trust.WARNED, Trust.CLEAN])
    assert found.mean_us == pytest.approx([10.0] * 3) and found.sessions.tolist() == [2] * 3
    alone = of_one_case([10.0, 30.0], trust=[Trust.CLEAN, Trust.WARNED])
    assert (alone.mean_us[0], alone.sessions[0]) == (10.0, 1)
    assert alone.variance[0] == of_one_case([10.0]).variance[0]
    warned = of_one_case([10.0, 40.0], trust=[Trust.WARNED] * 2)
    assert warned.mean_us == pytest.approx([20.0] * 2)
    busy = of_one_case([10.0, 40.0], trust=[Trust.WARNED, Trust.DISTURBED])
    assert (busy.mean_us[0], busy.sessions[0]) == (10.0, 1)


def test_sessions_with_scattered_repeats_count_like_clean_ones() -> None:
    found = of_one_case([10.0, 40.0], trust=[Trust.CLEAN, Trust.SCATTERED])
    assert found.mean_us == pytest.approx([20.0] * 2) and found.sessions.tolist() == [2] * 2
    warned = of_one_case([10.0, 40.0], trust=[Trust.WARNED, Trust.SCATTERED])
    assert (warned.mean_us[0], warned.sessions[0]) == (10.0, 1)


def test_equal_means_are_unchanged_to_the_last_digit() -> None:
    for mean_us in (8038.4555801505685, 0.1 + 0.2, 1234565.0):
        assert set(of_one_case([mean_us] * 3).mean_us) == {mean_us}


def test_session_counts_once_for_any_number_of_its_measurements() -> None:
    found = of_one_case([10.0, 20.0, 20.0], sessions=[0, 1, 1])
    assert found.mean_us == pytest.approx([200**0.5] * 3) and found.sessions.tolist() == [2] * 3


@pytest.mark.thorough
@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=9))
def test_pooled_mean_is_within_the_range_of_its_sessions(mean_us: list[float]) -> None:
    found = of_one_case(mean_us)
    assert min(mean_us) * 0.999999 <= found.mean_us[0] <= max(mean_us) * 1.000001
    assert found.variance[0] > 0 and np.isfinite(found.variance[0])


@pytest.mark.thorough
@given(st.lists(st.floats(20, 40), min_size=2, max_size=9), st.randoms(use_true_random=False))
def test_order_of_sessions_changes_nothing(mean_us: list[float], random) -> None:
    found = of_one_case(mean_us)
    shuffled = mean_us[:]
    random.shuffle(shuffled)
    assert of_one_case(shuffled).mean_us[0] == pytest.approx(found.mean_us[0], rel=1e-6)
