"""The data of a kernel's page: short numbers, and durations off their curves."""

import numpy as np
import pytest

from collector.report.kernel_data import off_curves, short_numbers

pytestmark = pytest.mark.fast


def test_short_numbers_have_six_digits_and_no_nan():
    values = [
        1.23456789,
        123456.789,
        1234567.89,
        9.87654321e-5,
        1e15 / 3,
        0.0,
        -2.5,
        np.nan,
        np.inf,
    ]
    expected = [1.23457, 123457.0, 1234570.0, 9.87654e-5, 333333e9, 0.0, -2.5, None, None]
    assert short_numbers(values) == expected
    assert repr(short_numbers([0.1 + 0.2])[0]) == "0.3"


def test_a_duration_off_the_curve_of_its_neighbours_is_an_outlier():
    sizes = np.array([[m, n] for n in (8, 16) for m in (1, 2, 4, 8, 16)], np.float64)
    us = sizes[:, 0] * sizes[:, 1]
    us[3] *= 2
    least = np.full(len(us), np.log(1.5))
    assert np.flatnonzero(off_curves(sizes, np.log(us), least)).tolist() == [3]
    assert not off_curves(sizes, np.log(us), np.full(len(us), 1.0)).any()  # wide intervals
    far = sizes * np.array([1.0, 1.0])
    far[:, 0] **= 4
    assert not off_curves(far, np.log(us), least).any()  # neighbours too distant
