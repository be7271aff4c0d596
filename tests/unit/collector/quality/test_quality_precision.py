"""When repeats give their mean as precisely as requested, on simulated noise."""

import math
import random

import pytest

from collector.quality.statistics import is_check_count, is_precise

pytestmark = pytest.mark.fast


def noise(number, share, alike=0.0):
    """Return a thousand times around 100 us with autocorrelation `alike`."""
    draw, state = random.Random(number), 0.0
    for _ in range(1000):
        state = alike * state + math.sqrt(1 - alike**2) * draw.gauss(0, 1)
        yield 100 * (1 + share * state)


def used(times, precision):
    """Return the times that were taken until it was precise; all of them if it never was."""
    times = list(times)
    for count in range(1, len(times)):
        if is_check_count(count) and is_precise(times[:count], precision):
            return times[:count]
    return times


def off(times):
    return abs(sum(times) / len(times) / 100 - 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "most"), [(0.001, 6), (0.01, 30), (0.03, 110), (0.1, 1000)])
def test_number_of_repeats_follows_from_the_noise(share, most):
    taken = [used(noise(number, share), 0.01) for number in range(60)]
    assert max(map(len, taken)) <= most
    needed = (1.96 * share / 0.01) ** 2
    assert sorted(map(len, taken))[30] >= min(needed, 400)
    assert sum(off(times) > 0.01 for times in taken) <= 6  # 3 by the interval's own 5 %


@pytest.mark.thorough
def test_autocorrelated_repeats_need_more_of_them():
    alone = [used(noise(number, 0.03), 0.01) for number in range(40)]
    alike = [used(noise(number, 0.03, 0.5), 0.01) for number in range(40)]
    assert sum(map(len, alike)) > 1.5 * sum(map(len, alone))
    assert sum(off(times) > 0.01 for times in alike) <= 8


def test_few_equal_repeats_are_not_sufficient():
    lucky = [100.0] * 5
    assert not is_precise(lucky, 0.01)
    assert is_precise([*lucky, 100.0], 0.01)
    assert not is_precise([*lucky, 104.0], 0.01)  # the noise has changed
    assert not is_precise([*lucky, 130.0], 0.01)


def test_precision_checks_become_less_frequent():
    reconciliations = [count for count in range(1, 1001) if is_check_count(count)]
    assert reconciliations[:4] == [6, 7, 8, 10] and len(reconciliations) < 30
