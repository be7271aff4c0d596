"""Runtime columns are filled in by the operator, and nothing else changes."""

from dataclasses import replace

import pytest

from collector.ops.registry import find_operator
from collector.ops.runtime import with_runtime_columns
from tests.fixtures.op_rows import all_rows, rows_of
from tests.fixtures.row_checks import failing

pytestmark = pytest.mark.fast

COMPLETENESS = "Runtime metadata_completeness"


def fused(**extra):
    """Return a paged decode row without runtime columns."""
    row = rows_of("FusedInferAttentionScore")[1]
    return replace(row, extra={name.replace("_", " ", 1): text for name, text in extra.items()})


OP = find_operator("FusedInferAttentionScore")


def test_every_column_that_a_launch_depends_on_is_filled_in():
    row = with_runtime_columns(fused(), OP)
    assert row.extra == {
        "Runtime actual_seq_lengths_shape": "5",
        "Runtime actual_seq_lengths_values": "1,2,3,4,5",
        "Runtime actual_seq_lengths_kv_shape": "5",
        "Runtime actual_seq_lengths_kv_values": "16,16,16,16,16",
        "Runtime avg_seq_len": "16.000000",
        "Runtime block_table_shape": "5,4",
        "Runtime block_table_valid_blocks": "1,1,1,1,1",
        "Runtime num_heads": "4",
        "Runtime num_key_value_heads": "1",
        "Runtime sparse_mode": "3",
        "Runtime input_layout": "TND",
        "Runtime block_size": "16",
        COMPLETENESS: "runtime_values",
    }


def test_filled_in_columns_are_part_of_the_case_and_their_origin_is_not():
    bare, row = fused(), with_runtime_columns(fused(), OP)
    assert row.case_id != bare.case_id
    assert row.case.attribute("Runtime num_heads") == "4"
    assert row.case.attribute(COMPLETENESS) is None


@pytest.mark.parametrize(
    ("message", "becomes"),
    [
        ("", "runtime_values"),
        ("profile_shapes_only", "runtime_values"),
        ("runtime_values_dumped", "runtime_values_dumped"),
        ("shape_grid_scene_generated", "shape_grid_scene_generated"),
        ("legacy", "legacy"),
    ],
)
def test_completeness_is_that_of_the_row_unless_it_is_outdated(message, becomes):
    row = with_runtime_columns(fused(Runtime_metadata_completeness=message), OP)
    assert row.extra[COMPLETENESS] == becomes


def test_given_columns_are_unchanged():
    message = {"Runtime_actual_seq_lengths_kv_values": "9;8;7;6;5", "Runtime_source_profile": "a"}
    row = with_runtime_columns(fused(**message), OP)
    assert row.extra["Runtime actual_seq_lengths_kv_values"] == "9;8;7;6;5"
    assert row.extra["Runtime source_profile"] == "a"
    assert row.extra["Runtime avg_seq_len"] == "7.000000"


def test_refused_rows_and_operators_without_columns_are_unchanged():
    refused = fused(Runtime_num_heads="3")
    assert with_runtime_columns(refused, OP) is refused
    plain = rows_of("Add")[0]
    assert with_runtime_columns(plain, find_operator("Add")) is plain


def test_completed_row_has_every_column_that_its_launch_depends_on():
    rows = [row for row in all_rows() if find_operator(row.kernel_type).runtime(row.case)]

    def check(row):
        op = find_operator(row.kernel_type)
        filled = with_runtime_columns(row, op)
        assert with_runtime_columns(filled, op) == filled
        columns = op.runtime(filled.case)
        assert columns == op.runtime(row.case)
        assert {name: filled.extra[name].strip() for name in columns} == columns
        assert filled.extra[COMPLETENESS].strip()

    assert len(rows) > 30
    assert failing(rows, check, lambda row: row.case.describe()) == []
