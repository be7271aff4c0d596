"""How much of the time between launches nothing ran."""

import pytest

from collector.quality.disturbances import gap_share

pytestmark = pytest.mark.fast

NOW = 1_764_000_000_000_000_001  # sixteen digits and more: no float has them


def test_what_lies_between_the_end_of_one_and_the_start_of_the_next_is_a_gap():
    assert gap_share([(NOW, 10.0), (NOW + 10_000, 10.0)]) == 0.0
    assert gap_share([(NOW, 10.0), (NOW + 30_000, 10.0)]) == 0.5


def test_what_runs_beside_a_launch_leaves_no_gap():
    beside = [(NOW, 40.0), (NOW + 5_000, 10.0), (NOW + 30_000, 10.0)]
    assert gap_share(beside) == 0.0
    assert gap_share([*beside, (NOW + 70_000, 10.0)]) == 30 / 80


def test_a_single_launch_has_none_before_it_or_behind_it():
    assert gap_share([]) is None and gap_share([(NOW, 10.0)]) is None
