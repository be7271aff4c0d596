"""What canaries find, as their script judges it; it needs no data of others."""

import pytest

from tests.truth import canaries

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_a_slow_device_and_a_throttle_are_found_and_sound_devices_left_alone():
    found = canaries.judge(30, seed=1)  # few: the bars are those of the script's 200
    assert found["launches"] == 24
    assert min(found["shift"], found["throttle"]) > 0.9, found
    assert max(found["others"], found["shuffled"], found["steady"]) < 0.02, found
