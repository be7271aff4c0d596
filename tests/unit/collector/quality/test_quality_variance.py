"""The model of variance on sessions whose true variance is known."""

from dataclasses import replace

import numpy as np
import pytest

from collector.quality.evidence import (
    LEAST_SPREAD,
    SessionMeans,
    Trust,
    evidence_of,
    independent_differences,
)
from collector.quality.pooled import stack_intervals
from collector.quality.variance import fit, learn
from collector.quality.variance_parts import Origin, variance_parts
from collector.quality.variance_prior import VariancePrior, prior_of, prior_of_backend

pytestmark = pytest.mark.fast

PRIOR = VariancePrior(
    ratio=1.0, tail_degrees=8.0, repeat_spread=0.01, device_spread=0.01, weight=10
)
REPEATS = 25


def drawn(
    cases: int,
    sessions: int,
    *,
    session_sd: float,
    repeat_sd: float = 0.01,
    device_sd: float = 0.0,
    outlier: int = 0,
    seed: int = 0,
) -> SessionMeans:
    """Draw cases of true means over three decades, each measured by every session; odd sessions are
    on another device. The first `wild` sessions take half as long again."""
    random = np.random.default_rng(seed)
    true_us = 10 ** random.uniform(1, 4, cases)
    devices = random.normal(0, device_sd, (2, cases))
    deviations = random.normal(0, np.hypot(session_sd, repeat_sd / REPEATS**0.5), (sessions, cases))
    for session in range(sessions):
        deviations[session] += devices[session % 2] if device_sd else 0
        deviations[session] += np.log(1.5) if session < outlier else 0
    count = cases * sessions
    return SessionMeans(
        cases=np.tile(np.arange(cases), sessions),
        families=["matmul" if n % 2 else "norm" for n in range(cases)] * sessions,
        sessions=np.repeat(np.arange(sessions), cases),
        devices=np.repeat(np.arange(sessions) % 2 if device_sd else np.zeros(sessions, int), cases),
        mean_us=(true_us * np.exp(deviations)).ravel(),
        spreads=np.full(count, repeat_sd),
        repeats=np.full(count, float(REPEATS)),
        trust=np.full(count, Trust.CLEAN),
    )


def chosen(means: SessionMeans, places: list[int]) -> SessionMeans:
    names = ("cases", "sessions", "devices", "mean_us", "spreads", "repeats", "trust")
    families = [means.families[at] for at in places]
    return SessionMeans(families=families, **{n: getattr(means, n)[places] for n in names})


def session_sd(means: SessionMeans, prior: VariancePrior = PRIOR) -> float:
    evidence = evidence_of(means, repeat_spread=prior.repeat_spread)
    variance = fit(evidence, prior)
    return float(np.median(variance.ratios * evidence.group_spread**2) ** 0.5)


def test_variance_between_sessions_is_estimated():
    for true in (0.003, 0.03, 0.2):
        assert session_sd(drawn(200, 2, session_sd=true)) == pytest.approx(true, rel=0.25)


def test_one_outlying_session_in_ten_has_little_weight():
    """Half as long again, while sessions differ by 2 %: a plain estimate would be 13 %."""
    quiet = session_sd(drawn(60, 10, session_sd=0.02))
    assert session_sd(drawn(60, 10, session_sd=0.02, outlier=1)) < 1.6 * quiet


def test_prior_variance_is_used_and_named_without_repeats():
    evidence = evidence_of(drawn(50, 1, session_sd=0.05), repeat_spread=0.01)
    variance = fit(evidence, PRIOR)
    assert variance.learnt == PRIOR and variance.is_of_prior
    found = stack_intervals(evidence, variance)
    assert set(found.origins) == {Origin.PRIOR}
    parts = variance_parts(evidence, variance)
    assert parts.session == pytest.approx(0.01**2, rel=0.1)
    assert (found.low_us < evidence.means.mean_us).all()
    assert (found.high_us > evidence.means.mean_us).all()


def test_few_repeats_adjust_the_prior_and_many_replace_it():
    few, many = (
        learn([evidence_of(drawn(n, 2, session_sd=0.05), repeat_spread=0.01).pairs], PRIOR).ratio
        for n in (3, 300)
    )
    assert PRIOR.ratio < few < many
    assert many == pytest.approx(25, rel=0.3)


def test_cases_measured_twice_give_the_variance_of_the_others():
    means = drawn(40, 2, session_sd=0.05)
    again = 20  # only of the first half of the cases
    evidence = evidence_of(chosen(means, list(range(40 + again))), repeat_spread=0.01)
    variance = fit(evidence, PRIOR)
    origins = stack_intervals(evidence, variance).origins
    assert not variance.is_of_prior
    assert set(origins[:again]) == {Origin.THIS_CASE} == set(origins[40:])
    assert set(origins[again:40]) == {Origin.BAND}


def test_frequently_measured_case_has_its_own_variance():
    """One case scatters ten times as much as its group."""
    means = drawn(60, 12, session_sd=0.01)
    wobble = np.random.default_rng(5).normal(0, 0.1, len(means.cases))
    is_it = means.cases == 7
    means = replace(means, mean_us=means.mean_us * np.exp(np.where(is_it, wobble, 0)))
    evidence = evidence_of(means, repeat_spread=0.01)
    parts = variance_parts(evidence, fit(evidence, PRIOR))
    assert np.median(parts.session[is_it]) > 10 * np.median(parts.session[~is_it])


def test_variance_of_devices_is_separated_from_that_of_sessions():
    means = drawn(300, 4, session_sd=0.01, device_sd=0.05)
    learnt = learn([evidence_of(means, repeat_spread=0.01).pairs], PRIOR)
    assert learnt.device_spread == pytest.approx(0.05, rel=0.25)
    one = drawn(300, 4, session_sd=0.01)
    pairs = evidence_of(one, repeat_spread=0.01).pairs
    assert learn([pairs], PRIOR).device_spread == PRIOR.device_spread


def test_stated_coverage_is_reached():
    """Variances are estimated from 24 cases measured twice; intervals of the first session of 400
    others are compared with the mean of twelve more sessions. One device."""
    prior = replace(PRIOR, device_spread=1e-6)
    means = drawn(424, 13, session_sd=0.03, seed=3)
    seen = chosen(means, [*range(424), *range(424, 448)])
    evidence = evidence_of(seen, repeat_spread=0.01)
    variance = fit(evidence, prior)
    others = np.exp(np.log(means.mean_us.reshape(13, 424))[1:].mean(axis=0))[24:]
    for share, slack in ((0.5, 0.1), (0.95, 0.04)):
        found = stack_intervals(evidence, variance, share=share)
        low, high = found.low_us[24:424], found.high_us[24:424]
        assert np.mean((low <= others) & (others <= high)) == pytest.approx(share, abs=slack)


def test_order_of_sessions_changes_nothing():
    means = drawn(30, 3, session_sd=0.05)
    swapped = replace(means, sessions=2 - means.sessions)
    one, other = (fit(evidence_of(m, repeat_spread=0.01), PRIOR) for m in (means, swapped))
    assert one.learnt == other.learnt


def test_repeats_of_one_session_give_no_variance_of_sessions():
    means = drawn(30, 2, session_sd=0.05)
    together = replace(means, sessions=np.zeros(60, np.int64))
    assert len(evidence_of(together, repeat_spread=0.01).pairs) == 0


def test_session_without_spread_gets_that_of_its_group():
    means = drawn(20, 1, session_sd=0.05, repeat_sd=0.05)
    spreads, repeats = means.spreads.copy(), means.repeats.copy()
    spreads[0], repeats[0], spreads[1] = np.nan, 1, 0.0
    evidence = evidence_of(replace(means, spreads=spreads, repeats=repeats), repeat_spread=0.01)
    assert evidence.repeats_variance[0] == pytest.approx(0.05**2, rel=0.1)
    assert 0 < evidence.repeats_variance[1] < 0.05**2 / REPEATS
    silent = replace(means, spreads=np.zeros(20))
    assert (evidence_of(silent, repeat_spread=0.01).group_spread >= 0.9 * LEAST_SPREAD).all()


def test_every_kind_of_device_has_a_prior():
    kinds = [prior_of(d) for d in ("CPU_AMD_EPYC_2t", "CUDA_NVIDIA_H200", "ATLAS_800_A3", "X")]
    assert kinds[0].tail_degrees < kinds[1].tail_degrees
    assert kinds[2] == kinds[3]
    assert [prior_of_backend(backend) for backend in ("cpu", "cuda", "npu")] == kinds[:3]
    assert kinds[1].ratio_of("matmul") > kinds[1].ratio == kinds[1].ratio_of("unheard")
    libraries = [prior_of(d, over_ranks=True) for d in ("CPU_x_2t", "CUDA_x", "ATLAS_800_A3")]
    assert libraries[0].tail_degrees < libraries[2].tail_degrees and not libraries[1].families


def of_one_case(mean_us: list[float], sessions: list[int], devices: list[int]):
    """Return the parts of the variance of one case's measurements, if nothing else is known."""
    count = len(mean_us)
    means = SessionMeans(
        cases=np.zeros(count, np.int64),
        families=["matmul"] * count,
        sessions=np.array(sessions),
        devices=np.array(devices),
        mean_us=np.array(mean_us),
        spreads=np.full(count, 0.01),
        repeats=np.full(count, float(REPEATS)),
        trust=np.full(count, Trust.CLEAN),
    )
    evidence = evidence_of(means, repeat_spread=0.01)
    return variance_parts(
        evidence,
        replace(fit(evidence, PRIOR), degrees=np.ones(len(evidence.group_names)), shared=0.0),
    )


def test_agreeing_devices_have_a_small_variance():
    means = drawn(400, 4, session_sd=0.002, repeat_sd=0.001, device_sd=0.0005)
    prior = replace(PRIOR, device_spread=0.015)
    learnt = fit(evidence_of(means, repeat_spread=0.01), prior).learnt
    assert learnt.device_spread < 0.003


def test_difference_between_devices_is_not_variance_of_sessions():
    apart = of_one_case([10.0, 10.0, 15.0, 15.0], [0, 1, 2, 3], [0, 0, 1, 1])
    alike = of_one_case([10.0, 10.0, 10.0, 10.0], [0, 1, 2, 3], [0, 0, 1, 1])
    assert apart.session == pytest.approx(alike.session, rel=0.3)
    assert set(apart.degrees) == {3.0}  # one of each device's two sessions, and the group's


def test_all_measurements_of_a_case_share_its_variance():
    found = of_one_case([10.0, 20.0, 30.0, 31.0], [0, 0, 1, 2], [0, 0, 0, 0])
    assert set(found.degrees) == {3.0}
    assert set(found.origins) == {Origin.THIS_CASE}
    assert len(set(found.session)) == 1


def test_one_session_on_each_of_two_devices_gives_no_session_variance():
    found = of_one_case([10.0, 15.0], [0, 1], [0, 1])
    assert set(found.degrees) == {1.0} and Origin.THIS_CASE not in found.origins


def together(
    device_of: list[int], cases_of: list[range], *, session_sd: float, device_sd: float, seed: int
) -> tuple[SessionMeans, np.ndarray]:
    """Draw sessions on these devices, each of this many cases; the effect of a session or a device
    is common to all its cases. Also returns the true mean of each measurement's case."""
    random = np.random.default_rng(seed)
    true_us = 10 ** random.uniform(1, 4, max(cases.stop for cases in cases_of))
    devices = random.normal(0, device_sd, max(device_of) + 1)
    shifts = random.normal(0, session_sd, len(device_of)) + devices[device_of]
    sessions = np.repeat(np.arange(len(device_of)), [len(cases) for cases in cases_of])
    cases = np.concatenate([np.array(cases) for cases in cases_of])
    own = random.normal(0, 0.002, len(cases))
    means = SessionMeans(
        cases=cases,
        families=["matmul"] * len(cases),
        sessions=sessions,
        devices=np.array(device_of)[sessions],
        mean_us=true_us[cases] * np.exp(shifts[sessions] + own),
        spreads=np.full(len(cases), 0.01),
        repeats=np.full(len(cases), float(REPEATS)),
        trust=np.full(len(cases), Trust.CLEAN),
    )
    return means, true_us[cases]


def held_of(simulations: list[tuple[SessionMeans, np.ndarray]], prior: VariancePrior) -> float:
    """Return the share of the true means that intervals of 95 % cover."""
    held = []
    for means, true_us in simulations:
        evidence = evidence_of(means, repeat_spread=0.01)
        found = stack_intervals(evidence, fit(evidence, prior))
        held.append((found.low_us <= true_us) & (true_us <= found.high_us))
    return float(np.mean(held))


@pytest.mark.thorough
def test_two_devices_give_one_degree_of_freedom_for_any_number_of_cases():
    prior = replace(PRIOR, ratio=0.22, tail_degrees=3.0, device_spread=0.015)
    halves = [range(100), range(100, 200), range(100, 200), range(100)]
    simulations = [
        together([0, 1, 0, 1], halves, session_sd=0.001, device_sd=0.03, seed=seed)
        for seed in range(150)
    ]
    assert held_of(simulations, prior) > 0.9
    for means, _ in simulations[:9]:
        assert fit(evidence_of(means, repeat_spread=0.01), prior).device_degrees < 2


@pytest.mark.thorough
def test_two_sessions_give_one_degree_of_freedom_for_any_number_of_cases():
    both = [range(200), range(100)]
    simulations = [
        together([0, 0], both, session_sd=0.02, device_sd=0.0, seed=seed) for seed in range(150)
    ]
    evidence = evidence_of(simulations[0][0], repeat_spread=0.01)
    assert fit(evidence, PRIOR).degrees.max() < 4  # of tails of 8 and a hundred pairs
    assert held_of(simulations, replace(PRIOR, device_spread=1e-6)) > 0.88


def test_pair_of_known_sessions_adds_no_independent_difference():
    met = np.array([[0, 1], [1, 2], [2, 0], [0, 1], [3, 4]])
    assert independent_differences(met) == 3 and independent_differences(met[:0]) == 0
