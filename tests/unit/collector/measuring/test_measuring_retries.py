"""Which outcomes are believed at once."""

import pytest

from collector.measurement import Outcome
from collector.measuring.retries import is_answered

pytestmark = pytest.mark.fast


def test_which_outcomes_answer_a_case():
    lost = Outcome.PROFILER_LOST
    assert not is_answered([]) and not is_answered([lost])
    assert is_answered([lost, lost]) and is_answered([lost, Outcome.HUNG])
    assert not is_answered([Outcome.OOM]) and is_answered([Outcome.OOM, Outcome.OOM])
