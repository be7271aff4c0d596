"""How what is left to measure is cut into sessions."""

import pytest

from collector.measuring.batches import next_session
from collector.shard import ShardCase
from tests.unit.collector.measuring.pretending import cases, record

pytestmark = pytest.mark.fast


def test_sessions_hold_at_least_one_case_and_about_their_time():
    long = [ShardCase(record("9,9"), 100.0), *cases(3)]
    assert next_session(long, 2.0) == long[:1]
    assert next_session(long[1:], 2.5) == long[1:3]
