"""When repeats tell their mean as precisely as asked, on noise that is made."""

import math
import random

import pytest

from collector.quality.statistics import is_check_count, is_precise

pytestmark = pytest.mark.fast


def noise(number, share, alike=0.0):
    """A thousand times about 100 us; each has `alike` of the one before."""
    draw, state = random.Random(number), 0.0
    for _ in range(1000):
        state = alike * state + math.sqrt(1 - alike**2) * draw.gauss(0, 1)
        yield 100 * (1 + share * state)


def used(times, precision):
    """The times that were taken before it was precise; all of them where it never was."""
    times = list(times)
    for count in range(1, len(times)):
        if is_check_count(count) and is_precise(times[:count], precision):
            return times[:count]
    return times


def off(times):
    return abs(sum(times) / len(times) / 100 - 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("share", "most"), [(0.001, 6), (0.01, 30), (0.03, 110), (0.1, 1000)])
def test_it_takes_the_repeats_that_the_noise_makes_necessary(share, most):
    taken = [used(noise(number, share), 0.01) for number in range(60)]
    assert max(map(len, taken)) <= most
    needed = (1.96 * share / 0.01) ** 2
    assert sorted(map(len, taken))[30] >= min(needed, 400)
    assert sum(off(times) > 0.01 for times in taken) <= 6  # 3 by the interval's own 5 %


@pytest.mark.thorough
def test_neighbours_that_are_alike_take_more():
    alone = [used(noise(number, 0.03), 0.01) for number in range(40)]
    alike = [used(noise(number, 0.03, 0.5), 0.01) for number in range(40)]
    assert sum(map(len, alike)) > 1.5 * sum(map(len, alone))
    assert sum(off(times) > 0.01 for times in alike) <= 8


def test_a_few_lucky_repeats_are_not_believed():
    lucky = [100.0] * 5
    assert not is_precise(lucky, 0.01)
    assert is_precise([*lucky, 100.0], 0.01)
    assert not is_precise([*lucky, 104.0], 0.01)  # the noise is not what it was
    assert not is_precise([*lucky, 130.0], 0.01)


def test_looks_become_rarer():
    looks = [count for count in range(1, 1001) if is_check_count(count)]
    assert looks[:4] == [6, 7, 8, 10] and len(looks) < 30
