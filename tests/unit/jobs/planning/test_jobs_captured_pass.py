"""The time of a pass from its operators, and what other passes say of kernels and the host."""

from random import Random

import pytest

from collector.report.comparison import Isolated
from jobs.planning.captured_pass import HOST, CapturedPass, ContextFactors, KernelTime

pytestmark = pytest.mark.fast

FACTORS = {"MatMulV2": 1.3, "Add": 0.8, "SoftmaxV2": 1.1}
HOST_US = 6.0


def made_pass(random: Random, noise: float = 0.0) -> CapturedPass:
    """A pass whose time follows from FACTORS and HOST_US."""
    kernels = {
        name: KernelTime(random.randint(1, 40), random.uniform(50, 2000)) for name in FACTORS
    }
    whole_us = sum(FACTORS[name] * one.alone_us for name, one in kernels.items())
    whole_us += HOST_US * sum(one.launches for one in kernels.values())
    measured = Isolated(whole_us * random.lognormvariate(0.0, noise))
    return CapturedPass("made", "Made", kernels, measured)


def test_factors_of_other_passes_predict_a_pass() -> None:
    random = Random(1)
    factors = ContextFactors(FACTORS, [made_pass(random) for _ in range(12)])
    for kernel, factor in {**FACTORS, HOST: HOST_US}.items():
        found = factors.factor(kernel)
        assert found.low < factor < found.high
        assert found.value == pytest.approx(factor, rel=0.05)
    for _ in range(20):
        one = made_pass(random)
        assert factors.predict(one).value == pytest.approx(one.measured.mean_us, rel=0.01)


def test_intervals_contain_passes_that_scatter() -> None:
    covered = 0
    for seed in range(40):
        random = Random(seed)
        factors = ContextFactors(FACTORS, [made_pass(random, 0.08) for _ in range(9)])
        for _ in range(5):
            one = made_pass(random, 0.08)
            found = factors.predict(one)
            covered += found.low <= one.measured.mean_us <= found.high
    assert 0.92 <= covered / 200 <= 0.99


def test_without_passes_the_priors_remain() -> None:
    one = made_pass(Random(1))
    unmeasured = CapturedPass("other", "Other", one.kernels, None)
    factors = ContextFactors(FACTORS, [unmeasured])
    assert factors.passes == 0
    found = factors.factor("Add")
    assert found.value == pytest.approx(1.0) and found.low < 0.5 and found.high > 1.5
    predicted = factors.predict(one)
    assert predicted.low < one.alone_us < predicted.high
    unknown = {"New": KernelTime(2, unknown_us=500.0)}  # the time of the capture counts
    only = CapturedPass("third", "Third", unknown, None)
    host_us = 2 * factors.factor(HOST).value
    assert ContextFactors(unknown, ()).predict(only).value == pytest.approx(500 + host_us)
