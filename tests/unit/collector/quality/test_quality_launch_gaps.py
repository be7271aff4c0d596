"""The share of the time between launches in which nothing ran."""

import pytest

from collector.quality.profiler_limits import gap_share

pytestmark = pytest.mark.fast

NOW = 1_764_000_000_000_000_001  # sixteen digits and more, which no float holds


def test_gap_is_the_time_between_the_end_and_the_next_start():
    assert gap_share([(NOW, 10.0), (NOW + 10_000, 10.0)]) == 0.0
    assert gap_share([(NOW, 10.0), (NOW + 30_000, 10.0)]) == 0.5


def test_overlapping_launch_leaves_no_gap():
    beside = [(NOW, 40.0), (NOW + 5_000, 10.0), (NOW + 30_000, 10.0)]
    assert gap_share(beside) == 0.0
    assert gap_share([*beside, (NOW + 70_000, 10.0)]) == 30 / 80


def test_single_launch_has_no_gap_share():
    assert gap_share([]) is None and gap_share([(NOW, 10.0)]) is None
