"""Cases that take longer than larger ones, and the sawtooth of tiles."""

import numpy as np

from collector.quality.gates import larger_and_faster


def test_sawtooth_of_tiles_is_not_above_the_envelope():
    """Work is done in tiles of 128, half as fast where a size is no multiple of 8."""
    sizes = np.arange(1.0, 2000)
    teeth_us = 10 * np.ceil(sizes / 128) * np.where(sizes % 8, 1.9, 1.0)
    assert (larger_and_faster(sizes[:, None], teeth_us) == -1).all()


def test_case_three_times_as_slow_as_a_larger_one_is_reported_with_it():
    sizes = np.array([[64.0, 64], [128, 64], [64, 128], [32, 256]])
    found = larger_and_faster(sizes, np.array([90.0, 40.0, 30.0, 5.0]))
    assert found.tolist() == [2, -1, -1, -1]


def test_difference_within_the_launch_overhead_is_ignored():
    assert larger_and_faster(np.array([[1.0], [2.0]]), np.array([6.0, 2.0])).tolist() == [-1, -1]


def test_many_cases_are_compared_in_parts():
    sizes = np.arange(1.0, 1002)[:, None]
    duration_us = 100 + sizes[:, 0]
    duration_us[500] = 5000.0
    assert np.flatnonzero(larger_and_faster(sizes, duration_us) >= 0).tolist() == [500]
    assert not len(larger_and_faster(np.empty((0, 2)), np.empty(0)))
