"""A collective for which fewer rounds were measured than planned is marked as such."""

import pytest

from collector.worker.gang_instrument import gang_measurements
from tests.unit.collector.worker.test_worker_gang import ALONE, requested, seen, session

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("rounds", "warnings"), [(2, 1), (3, 0)])
def test_missing_rounds_cause_a_warning(rounds: int, warnings: int) -> None:
    found = [seen(0, round_, *ALONE) for round_ in range(rounds)]
    (made,) = gang_measurements(session(requested()), found, {})
    assert len([warning for warning in made.warnings if "rounds" in warning]) == warnings
