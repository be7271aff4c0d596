"""The accuracy of canaries, as judged by their script; it needs no data of others."""

import pytest

from tests.truth import canaries

pytestmark = pytest.mark.fast


@pytest.mark.thorough
def test_slow_and_throttled_devices_are_detected_and_intact_ones_are_not():
    found = canaries.judge(30, seed=1)  # few: the limits are those of the script's 200
    assert found["launches"] == 24
    assert min(found["shift"], found["throttle"]) > 0.9, found
    assert max(found["others"], found["shuffled"], found["steady"]) < 0.02, found
