"""Requests that a server is given, and the times of their tokens."""

import pytest

from collector.workloads.served_requests import (
    ServedRequest,
    arriving_requests,
    at_rate,
    serving_times,
)

pytestmark = pytest.mark.fast


def test_requests_arrive_at_their_rate_and_alike_for_a_seed():
    found = arriving_requests(2000, 4.0, 64, 8, seed=1)
    assert found == arriving_requests(2000, 4.0, 64, 8, seed=1)
    assert found != arriving_requests(2000, 4.0, 64, 8, seed=2)
    assert found[0] == ServedRequest(0, 64, 8)
    assert found[-1].arrival_ns == pytest.approx(500e9, rel=0.1)


def test_pattern_of_arrivals_is_kept_at_another_rate():
    requests = [ServedRequest(ns, 64, 8) for ns in (0, 1_000_000_000, 4_000_000_000)]
    found = at_rate(requests, 5)
    assert [one.arrival_ns for one in found] == [0, 100_000_000, 400_000_000]
    assert at_rate(requests[:1], 5) == (requests[0],)


def test_times_are_those_of_tokens():
    found = serving_times([0, 10_000_000], [[5_000_000, 6_000_000, 9_000_000], [20_000_000]])
    assert found.ttft_ms == (5.0, 10.0)
    assert found.tpot_ms == (2.0,)
    assert found.tokens_per_s == 4 / 0.02
