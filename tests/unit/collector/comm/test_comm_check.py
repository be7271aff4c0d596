"""Impossible values in a table of collectives, and the comparison with hccl_test."""

import pytest

from collector.codec.errors import BadInput
from collector.comm.check import (
    CheckedRow,
    problems,
    ratio_verdict,
    series_of,
    tier_problems,
    timed_points,
)
from collector.comm.comm_table import CommTable
from collector.comm.validation import compared, read_hccl_test
from tests.unit.collector.naming import names, naming

# The layout of oam-tools' hccl_test; sizes and times are made up.
PRINTED = """\
the minbytes is 8192, maxbytes is 65536, iters is 20, warmup_iters is 10
data_size(Bytes): | aveg_time(us):  | alg_bandwidth(GB/s): | check_result:
8192              | 50.00           | 0.16384              | success
WARNING: something else
16384             | 80.00           | 0.20480              | success
local rank_id 3, check result failed, 32768 | 90.00 | 0.36409 | failed
65536             | 200.00          | 0.32768              | NULL
"""


def point(size, us, ranks=8, tier="1", operation="all_reduce", spread=0.0):
    return CheckedRow(operation, size, ranks, "DT_BF16", tier, us, spread)


def only_series(*points):
    (series,) = series_of(points)
    return series


def test_bandwidth_above_that_of_the_link_is_reported():
    series = only_series(point(1 << 20, 100.0), point(2 << 20, 150.0))
    assert problems(series) == []
    (line,) = problems(series, link_gbps=20.0)
    assert names(line, 2097152, "24.5 GB/s", 20)


def test_larger_message_that_is_much_faster_is_reported():
    series = only_series(point(1024, 50.0), point(2048, 39.0), point(4096, 60.0))
    (line,) = problems(series)
    assert names(line, "all_reduce", 2048, "39 us", 1024, "50 us", 8, "DT_BF16", "tier 1")
    assert not problems(only_series(point(1024, 50.0), point(2048, 41.0)))
    noisy = only_series(point(1024, 50.0, spread=0.3), point(2048, 39.0))
    assert not problems(noisy)


def test_nearer_ranks_that_are_slower_are_reported():
    near, far = point(1024, 50.0, tier="1"), point(1024, 30.0, tier="0")
    assert len(tier_problems(series_of([near, far]))) == 1
    assert not tier_problems(series_of([near, point(1024, 49.0, tier="0")]))
    assert not tier_problems(series_of([near, point(1024, 30.0, tier="2")]))


def test_rows_without_a_duration_are_ignored():
    columns = ("message_bytes", "num_devices", "Duration(us)")
    rows = ({"message_bytes": "1024", "num_devices": "8", "Duration(us)": ""},)
    assert timed_points("all_reduce", CommTable(columns, rows), "x.csv") == []


@pytest.mark.parametrize(
    ("size", "ranks", "us"),
    [("x", "8", "1"), ("1024", "8", "nan"), ("1024", "8", "-1"), ("0", "8", "1"), ("8", "1", "1")],
)
def test_invalid_numbers_are_refused_with_their_line(size, ranks, us):
    columns = ("message_bytes", "num_devices", "Duration(us)")
    row = dict(zip(columns, (size, ranks, us), strict=True))
    with pytest.raises(BadInput, match=r"x\.csv:2: "):
        timed_points("all_reduce", CommTable(columns, (row,)), "x.csv")


def test_hccl_test_is_read_without_the_rows_of_failing_ranks():
    test = read_hccl_test(PRINTED.splitlines(), "out.txt")
    assert test.rows == ((8192, 50.0), (16384, 80.0), (65536, 200.0))
    assert test.failed_ranks == (3,)
    with pytest.raises(BadInput, match=naming("out.txt:")):
        read_hccl_test(["nothing"], "out.txt")


def test_hccl_test_size_with_a_failed_check_is_not_compared():
    rows = ["8192 | 12.00 | 0.68 | success", "16384 | 13.00 | 1.26 | failed"]
    test = read_hccl_test(rows, "out.txt")
    assert (test.rows, test.failed_bytes) == (((8192, 12.0),), (16384,))
    alone = read_hccl_test(rows[1:], "out.txt")
    assert compared(alone, "all_reduce", 8, [point(16384, 13.0)]) == []
    for wrong in ("8192 | 99.00 | 0.08 | success", "32768 | 9.00 | 3.64 | passed"):
        with pytest.raises(BadInput) as error:
            read_hccl_test([*rows, wrong], "out.txt")
        assert (error.value.path, error.value.line) == ("out.txt", 3)


def test_hccl_test_output_is_read_with_the_rank_prefixes_of_mpi():
    plain = read_hccl_test(PRINTED.splitlines(), "out.txt")
    for prefix in ("[1,0]<stdout>:", "[1,0]<stdout>: ", "[0] ", "[prterun-node-7-9@1,0]<stdout>: "):
        lines = [prefix + line for line in PRINTED.splitlines()]
        assert read_hccl_test(lines, "out.txt") == plain, prefix


def test_hccl_test_size_is_that_of_the_whole_tensor():
    test = read_hccl_test(PRINTED.splitlines(), "out.txt")
    (reduced,) = compared(test, "all_reduce", 8, [point(8192, 60.0), point(1024, 1.0)])
    assert reduced.ratio == pytest.approx(1.2)
    gathered = compared(
        test, "all_gather", 8, [point(1024, 60.0, operation="all_gather"), point(8192, 9.0)]
    )
    assert [one.hccl_us for one in gathered] == [50.0]
    with pytest.raises(BadInput, match=naming("broadcast", 8)):
        compared(test, "broadcast", 8, [point(8192, 60.0)])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, "PASS"), (0.5, "PASS"), (3.9, "WARN"), (0.24, "FAIL"), (4.1, "FAIL")],
)
def test_verdict_has_the_limits_of_the_consumer(ratio, expected):
    assert ratio_verdict(ratio) == expected
