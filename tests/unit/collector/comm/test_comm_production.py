"""Rows of a tree compared with the durations of a real step."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.comm.check import CheckedRow, ratio_verdict
from collector.comm.comm_table import read_comm_table, write_offsets
from collector.comm.profiled import profiled_collectives
from collector.comm.validation import (
    InNetwork,
    compare_with_tree,
    in_network,
    offsets_by_key,
    trimmed_median,
)
from collector.profiles.transfers import Transfer
from collector.ranks.collective import Collective
from collector.ranks.topology import Grid
from tests.unit.collector.naming import naming

GRID = Grid((48, 8, 2))


def message(size, us, operation="all_gather", ranks=16):
    return InNetwork(Collective(operation, size, "bfloat16", ranks, 1), 3, us)


def row(size, us, operation="all_gather", ranks=16, dtype="DT_BF16", tier="1"):
    return CheckedRow(operation, size, ranks, dtype, tier, us)


def test_trimmed_median_ignores_the_outliers_of_a_network():
    late = [17.0] * 8 + [5.0, 5600.0]
    assert trimmed_median(late) == 17.0
    assert trimmed_median([3.0]) == 3.0
    assert trimmed_median([3.0, 5.0]) == 4.0  # two values have no middle one


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=50))
def test_trimmed_median_is_within_the_range_of_the_times(times):
    assert min(times) <= trimmed_median(times) <= max(times)


def test_rows_of_a_profile_become_messages_with_their_trimmed_median():
    sent = [Transfer("hcom_allGather_", "g", 16, 15 * 1024, us) for us in (10.0, 12.0, 900.0)]
    lost = Transfer("hcom_allReduce_", "g", None, 0, 5.0)
    (one,) = in_network(profiled_collectives([*sent, lost], GRID, "bfloat16"))
    assert one == InNetwork(Collective("all_gather", 1024, "bfloat16", 16, 1), 3, 12.0, True)


def test_message_is_compared_with_the_row_of_its_size():
    one = compare_with_tree(
        message(75968, 25.9), [row(65536, 9.0), row(75968, 12.5), row(131072, 20.0)]
    )
    assert one.is_exact
    assert one.ratio == pytest.approx(12.5 / 25.9)
    assert ratio_verdict(one.ratio) == "WARN"
    assert one.offset_us == pytest.approx(13.4)


def test_message_between_two_sizes_is_interpolated_and_has_no_offset():
    one = compare_with_tree(
        message(1536, 12.0), [row(2048, 14.0), row(1024, 10.0), row(4096, 90.0)]
    )
    assert not one.is_exact
    assert (one.below.message_bytes, one.above.message_bytes) == (1024, 2048)
    assert one.isolated_us == pytest.approx(12.0)
    assert one.offset_us is None


@pytest.mark.parametrize(
    "points",
    [
        [],
        [row(2048, 1.0), row(4096, 2.0)],  # beyond: smaller sizes are unknown
        [row(512, 1.0)],
        [row(1024, 1.0, ranks=8)],
        [row(1024, 1.0, operation="all_reduce")],
    ],
)
def test_message_without_matching_rows_is_not_compared(points):
    assert compare_with_tree(message(1024, 5.0), points) is None


def test_row_of_the_own_tier_and_dtype_is_preferred():
    rows = [row(1024, 1.0, tier="0"), row(1024, 2.0), row(1024, 3.0, dtype="DT_FP16")]
    assert compare_with_tree(message(1024, 5.0), rows).isolated_us == 2.0
    assert (
        compare_with_tree(message(1024, 5.0), rows[::2]).isolated_us == 3.0
    )  # the tier has precedence
    assert compare_with_tree(message(1024, 5.0), rows[:1]).isolated_us == 1.0


@pytest.mark.parametrize(("network_us", "offset"), [(9.0, None), (10.0, 0.0), (31.0, None)])
def test_waiting_time_and_negative_differences_are_not_offsets(network_us, offset):
    assert compare_with_tree(message(1024, network_us), [row(1024, 10.0)]).offset_us == offset


def test_offsets_are_written_to_a_separate_column(tmp_path):
    path = tmp_path / "hcom_allGather_.csv"
    path.write_text(
        "message_bytes,num_devices,dtype,topology_tier,Duration(us),Offset(us)\n"
        "1024,16,DT_BF16,1,10.00,\n"
        "2048,16,DT_BF16,1,11.00,3.00\n"
    )
    one = compare_with_tree(message(1024, 14.6), [row(1024, 10.0), row(2048, 11.0)])
    offsets = offsets_by_key("all_gather", [one])
    assert offsets_by_key("all_reduce", [one]) == {}
    assert write_offsets(path, offsets) == 1
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [(found["Duration(us)"], found["Offset(us)"]) for found in rows] == [
        ("10.00", "4.60"),
        ("11.00", ""),  # this profile does not record
    ]
    assert read_comm_table(path).columns[-1] == "Offset(us)"


def test_offsets_are_written_only_to_tables_of_collectives(tmp_path):
    path = tmp_path / "hcom_allGather_.csv"
    path.write_text("Name,Type\n")
    with pytest.raises(BadInput, match=naming("message_bytes", "num_devices")):
        write_offsets(path, {})


def test_rows_of_another_tier_or_dtype_are_compared_but_get_no_offset():
    for other in (row(1024, 10.0, tier="0"), row(1024, 10.0, dtype="DT_FLOAT")):
        one = compare_with_tree(message(1024, 12.0), [other])
        assert one.is_exact and not one.is_own
        assert one.ratio == pytest.approx(10.0 / 12.0)
        assert one.offset_us is None


def test_message_from_a_trace_is_compared_with_the_row_of_its_key():
    sent = Transfer("hcom_allReduce_", "g", 8, 28_647_232, 45.0, (), 4_097_000, "FP32")
    (message,) = in_network(profiled_collectives([sent], GRID, "bfloat16"))
    of = ("all_reduce", 8)
    rows = [row(16_369_846, 39.0, *of), row(16_388_000, 40.0, *of, dtype="DT_FLOAT")]
    one = compare_with_tree(message, rows)
    assert one.is_exact and one.is_own
    assert one.offset_us == pytest.approx(5.0)


def test_collectives_of_zero_duration_are_ignored():
    sent = [Transfer("hcom_allGather_", "g", 16, 15 * 1024, us) for us in (0.0, 10.0)]
    (one,) = in_network(profiled_collectives(sent, GRID, "bfloat16"))
    assert one.duration_us == 10.0
    assert in_network(profiled_collectives(sent[:1], GRID, "bfloat16")) == []
