"""Requests that a server is given, and the times of their tokens."""

import pytest

from collector.codec.errors import BadInput
from collector.workloads.served_requests import (
    ServedRequest,
    arriving_requests,
    read_requests,
    serving_times,
)

pytestmark = pytest.mark.fast

LINE = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}'


def test_trace_begins_with_its_first_request(tmp_path):
    path = tmp_path / "trace.jsonl"
    early = '{"timestamp": 27480.5, "input_length": 5, "output_length": 1}'
    path.write_text(f"{LINE}\n\n{early}\n")
    assert read_requests(path) == (
        ServedRequest(0, 5, 1),
        ServedRequest(1_500_000, 6955, 52),
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "[]",
        LINE.replace("52", "0"),
        LINE.replace("52", "1.5"),
        LINE.replace("52", "true"),
        LINE.replace("27482", "NaN"),
        LINE.replace("timestamp", "time"),
    ],
)
def test_line_that_is_no_request_is_refused_with_its_place(tmp_path, line):
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{LINE}\n{line}\n" if line else "")
    with pytest.raises(BadInput) as error:
        read_requests(path)
    assert error.value.path == path
    assert error.value.line == (2 if line else None)


def test_requests_arrive_at_their_rate_and_alike_for_a_seed():
    found = arriving_requests(2000, 4.0, 64, 8, seed=1)
    assert found == arriving_requests(2000, 4.0, 64, 8, seed=1)
    assert found != arriving_requests(2000, 4.0, 64, 8, seed=2)
    assert found[0] == ServedRequest(0, 64, 8)
    assert found[-1].arrival_ns == pytest.approx(500e9, rel=0.1)


def test_times_are_those_of_tokens():
    requests = [ServedRequest(0, 8, 3), ServedRequest(10_000_000, 8, 1)]
    found = serving_times(requests, [[5_000_000, 6_000_000, 9_000_000], [20_000_000]])
    assert found.ttft_ms == (5.0, 10.0)
    assert found.tpot_ms == (2.0,)
    assert found.tokens_per_s == 4 / 0.02
