"""Refusals and costs of moving and indexing, which follow from shapes alone."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected

pytestmark = pytest.mark.fast

F1, F2, F3 = "FLOAT;INT64", "FLOAT;INT64;INT64", "FLOAT;INT64;INT64;INT64"
PLACED, PUT = "FLOAT;INT64;FLOAT", "FLOAT;FLOAT;INT64;INT64;INT64"


@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (("Transpose", "4,6;2", F1, "6,5", "FLOAT"), "dimensions & two"),
        (("Transpose", "1,6;2", F1, "6,1", "FLOAT"), "dimensions & two"),
        (("Transpose", "4,6;2", F1, "4,6", "FLOAT"), "dimensions & two"),
        (("Transpose", "4,6;2", F1, "6,4", "INT32"), "'y'"),
        (("BroadcastTo", "3,8;2", F1, "5,8", "FLOAT"), "larger & broadcast"),
        (("BroadcastTo", "5,8;2", F1, "5,8", "FLOAT"), "larger & broadcast"),
        (("BroadcastTo", "1,8;2", "BOOL;INT64", "5,8", "BOOL"), "'x'"),
        (("AsStrided", "24;2;2;1", F3, "3,8", "FLOAT"), "memory & kernel"),
        (("AsStrided", "20;2;2;1", F3, "3,8", "FLOAT"), "memory & kernel"),
        (("AsStrided", "384;3;3;1", F3, "2,3,64", "FLOAT"), "memory & kernel"),
        (("Tile", "4,8;2", F1, "4,12", "FLOAT"), "larger & repeats"),
        (("Tile", "4,8;2", F1, "8", "FLOAT"), "'multiples'"),
        (("Tile", "4,8;2", F1, "4,8", "FLOAT"), "larger & repeats"),
        (("Transpose", "4,6;3", F1, "6,4", "FLOAT"), "'permutation'"),
        (("Slice", "6,8;7;2", F2, "6,4", "FLOAT"), "'offsets'"),
        (("Slice", "6,8;2;7", F2, "6,4", "FLOAT"), "'sizes'"),
        (("Tile", "4,8;5", F1, "4,16", "FLOAT"), "'multiples'"),
        (("PadV3", "5,8;28;", "FLOAT;INT32;FLOAT", "8,8", "FLOAT"), "'paddings'"),
        (("BroadcastTo", "1,8;3", F1, "5,8", "FLOAT"), "'shape'"),
        (("Pack", "8;7", "FLOAT;FLOAT", "2,8", "FLOAT"), "shape & dimension"),
        (("Pack", "8;8", "FLOAT;FLOAT", "16", "FLOAT"), "shape & dimension"),
        (("Pack", "8;8", "FLOAT;INT32", "2,8", "FLOAT"), "'x'"),
        (("ConcatD", "4,8", "FLOAT", "4,8", "FLOAT"), "two inputs"),
        (("PadV3", "5,8;4;", "FLOAT;INT32;FLOAT", "4,9", "FLOAT"), "output & input"),
        (("PadV3", "5,8;4;", "FLOAT;INT32;FLOAT", "5,8", "FLOAT"), "output & input"),
        (("PadV3", "5;2;", "BOOL;INT32;BOOL", "8", "BOOL"), "'x'"),
        (("GatherV3", "20,6;2,5;1", F2, "2,5,6", "FLOAT"), "'indices'"),
        (("GatherV3", "20,6;5;1", F2, "5,7", "FLOAT"), "index & table"),
        (("GatherV3", "20,6;5;1", "FLOAT;INT8;INT64", "5,6", "FLOAT"), "INT32 & INT64"),
        (("GatherElementsV2", "6,20;5,4", F1, "5,4", "FLOAT"), "index & dimension"),
        (("GatherElementsV2", "20,32;6,32", F1, "6,32", "FLOAT"), "32 elements"),
        (
            ("GatherElementsV2", "6,20;6,4", "INT64;INT64", "6,4", "INT64"),
            "'x'",
        ),
        (("Index", "64,8;1;2;16", F3, "16,9", "FLOAT"), "indices & output"),
        (("Index", "64,8;1;2;16;15", f"{F3};INT64", "16,8", "FLOAT"), "'indices'"),
        (("Index", "64,8;1;2;16", "FLOAT;INT64;INT64;BOOL", "16,8", "FLOAT"), "INT32 & INT64"),
        (("Index", "3,9,4;2;3;5", F3, "3,5,4", "FLOAT"), "32 elements"),
        (("IndexPutV2", "40,8;6,7;1;1;6", PUT, "40,8", "FLOAT"), "value & indices"),
        (("IndexPutV2", "2,5,8;2,3,8;2;2;3", PUT, "2,5,8", "FLOAT"), "1024 elements"),
        (
            ("IndexPutV2", "400;101;1;1;101", "INT64;INT64;INT64;INT64;INT64", "400", "INT64"),
            "100 indices & 128",
        ),
        (
            ("IndexPutV2", "40;6;1;1;6", "DOUBLE;DOUBLE;INT64;INT64;INT64", "40", "DOUBLE"),
            "'x'",
        ),
        (("IndexFill", "20,8;5,1;", PLACED, "20,8", "FLOAT"), "'index'"),
        (("IndexFill", "20;5;", "INT8;INT64;INT8", "20", "INT8"), "'x'"),
        (("ScatterElementsV2", "6,20;7,5;7,5", PLACED, "6,20", "FLOAT"), "count <= rows"),
        (("ScatterElementsV2", "6,20;6,5;6,4", PLACED, "6,20", "FLOAT"), "'updates'"),
        (("ScatterElementsV2", "3,4,5;3,2,5;3,2,5", PLACED, "3,4,5", "FLOAT"), "'index'"),
        (("ScatterNdUpdate", "40,8;6,1;6,7", PLACED, "40,8", "FLOAT"), "coordinates & update"),
        (("ScatterNdUpdate", "40,8;6,3;6", PLACED, "40,8", "FLOAT"), "coordinates & update"),
        (("ScatterNdUpdate", "40,8;6;6,8", PLACED, "40,8", "FLOAT"), "rows_rank > 0"),
        (
            ("EmbeddingDenseGradV2", "72;12;12", "FLOAT;INT32;INT32", "20,6", "FLOAT"),
            "'table'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_contradicting_cases_are_refused(case_of, cells, rule):
    assert_rejected(case_of(*cells), "npu", rule)


@pytest.mark.parametrize(
    ("cells", "traffic"),
    [
        # 24 * 4 read and written, and a permutation of 2 * 8
        (("Transpose", "4,6;2", F1, "6,4", "FLOAT"), 208),
        # 8 * 4 read, 40 * 4 written, 2 * 8
        (("BroadcastTo", "1,8;2", F1, "5,8", "FLOAT"), 208),
        # 24 * 4 read and written, not the rest of the memory, and 5 * 8
        (("AsStrided", "48;2;2;1", F3, "3,8", "FLOAT"), 232),
        # 40 * 4 read, 64 * 4 written, paddings of 4 * 4, a value of 4
        (("PadV3", "5,8;4;", "FLOAT;INT32;FLOAT", "8,8", "FLOAT"), 436),
        # 3 * 8 * 8 read and written
        (("Pack", "8;8;8", "INT64;INT64;INT64", "3,8", "INT64"), 384),
        # 16 * 8 of 4 bytes read and written, 16 indices of 8, and 3 * 8
        (("Index", "64,8;1;2;16", F3, "16,8", "FLOAT"), 1176),
        # 6 * 8 of 4 bytes read and written, 6 indices of 8, 2 * 8
        (("IndexPutV2", "40,8;6,8;1;1;6", PUT, "40,8", "FLOAT"), 448),
        # 6 * 8 of 4 bytes read and written, 6 indices of 8
        (("ScatterNdUpdate", "40,8;6,1;6,8", PLACED, "40,8", "FLOAT"), 432),
        # 5 rows of 8 * 4 written, 5 indices of 8, a value of 4
        (("IndexFill", "20,8;5;", PLACED, "20,8", "FLOAT"), 204),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_traffic_counts_only_accessed_elements(case_of, cells, traffic):
    case = case_of(*cells)
    op = find_operator(case.kernel_type)
    op.check(case, "cpu")
    assert (op.flops(case), op.traffic(case)) == (0, traffic)


@pytest.mark.parametrize(
    ("kernel", "twin"),
    [
        ("AsStrided", "AsStridedAiCore"),
        ("GatherV2", "GatherV2AiCore"),
        ("PadV3", "PadV3AiCore"),
        ("ScatterNdUpdate", "ScatterNdUpdateAiCore"),
        ("Slice", "SliceAiCore"),
        ("TensorMove", "TensorMoveAiCore"),
        ("Transpose", "TransposeAiCore"),
    ],
)
def test_a_twin_is_launched_by_the_same_call(kernel, twin):
    assert find_operator(twin).call == find_operator(kernel).call
    assert find_operator(twin).family == find_operator(kernel).family >= {kernel, twin}
