"""A collective of which fewer rounds were measured than planned says so."""

import pytest

from collector.worker.gang_instrument import certificates
from tests.unit.collector.worker.test_worker_gang import ALONE, asked, seen, session

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("rounds", "warnings"), [(2, 1), (3, 0)])
def test_rounds_that_are_missing_are_warned_of(rounds: int, warnings: int) -> None:
    found = [seen(0, round_, *ALONE) for round_ in range(rounds)]
    (made,) = certificates(session(asked()), found, {})
    assert len([warning for warning in made.warnings if "rounds" in warning]) == warnings
